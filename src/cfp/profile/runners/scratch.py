"""Folders in the temporary directory that go with their process, however it ends.

A process that is killed cannot tidy up. Each folder holds a file that its process keeps locked
(`flock`), and the kernel lets go of the lock when the process ends: so whoever makes the next
folder can tell which ones nobody uses any more, and removes them. A folder gets its name once its
file is locked: one that is just being made is never taken for left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "cfp-scratch-"
OWNER = "owner"  # the file that is locked


@contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """Makes a folder for `what`, after removing those that processes of ours left behind."""
    _remove_stale(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix="cfp-new-"))
    owner = os.open(made / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    folder = made.with_name(f"{PREFIX}{what}-{made.name.rpartition('-')[2]}")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX)
        made.rename(folder)
        yield folder
    finally:
        for path in (made, folder):
            shutil.rmtree(path, ignore_errors=True)
        os.close(owner)


def _remove_stale(root: Path) -> None:
    """Removes folders of this user that no process holds. What cannot be removed stays: it harms
    nobody, and the next process tries again."""
    with contextlib.suppress(OSError):
        for path in root.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                    _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    owner = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return  # its process lives
    finally:
        os.close(owner)
