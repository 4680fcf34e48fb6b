"""Files written whole or not at all, and never where a link leads.

The text goes into a new file beside the target, under a name that nobody can guess and that must
not exist yet, and is then renamed onto the target. Whoever may write into the folder can therefore
not prepare a link that we would write through; a target that is itself a link is replaced, and what
it pointed to stays as it is.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cfp.errors import CfpError

_NAME_BYTES = 16  # randomness in the scratch file's name, so that nobody can guess it


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Writes a file; `what` it is, as "plan", is named where that fails."""
    target = Path(path)
    scratch = target.with_name(f".cfp-{secrets.token_hex(_NAME_BYTES)}")
    try:
        _refuse_devices(target, what)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(scratch, flags, 0o666)  # the user's umask decides, as for any file
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # or the name could survive a crash without its content
            scratch.replace(target)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CfpError(f"Cannot write the {what} to {target}: {error.strerror}.") from error


def _refuse_devices(target: Path, what: str) -> None:
    """Refuses devices: renaming onto /dev/null would replace it, which a user with the rights to do
    so regrets."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
        raise CfpError(f"Cannot write the {what} to {target}: it is a device, not a file.")
