"""Every measurement ever made, in one SQLite file.

Each call opens the file, does one transaction and closes it, one process at a time (a lock file
lies beside it): about 0.2 ms to read and some ms to write, for measurements that took seconds.
So nothing outlives a call that a fork could share, or that points to a file which someone renamed,
truncated or removed meanwhile; several threads and processes may use one store. A put is on the
disk when it returns: it survives SIGKILL, and the loss of power too.

A file that cannot be read is set aside under another name, never deleted. The new one gets what
could still be read, and what this process has put since it opened the store.
"""

from __future__ import annotations

import math
import os
import secrets
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from cfp.errors import CfpError
from cfp.profile.measure.lock import StillHeld, held
from cfp.profile.measure.rows import (
    BUSY_S,
    FORMAT,
    PUT,
    TABLE,
    Record,
    Row,
    UnreadableError,
    connect,
    read,
    row_of,
    salvage,
    transaction,
)

__all__ = ["Record", "Store", "StoreWarning"]

TUNED_FOLDER = "tuned"  # beside the measurements: the compiler's choices of kernels
AFTER_S = 1.0  # that a lock is waited for after the budget's end: most are held for milliseconds
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_DAMAGE |= {sqlite3.SQLITE_ERROR}  # our statements are right, so a table or column is missing
_COMPANIONS = ("-journal", "-wal", "-shm", "")

_T = TypeVar("_T")


class StoreWarning(UserWarning):
    """Measurements were found damaged; the message names the file and says what was done."""


class Store:
    """The store of all measurements, as the module describes it; `Store.open` makes one."""

    def __init__(self, path: Path, ends: float = math.inf) -> None:
        self.path = path
        self._ends = ends  # of `time.monotonic()`: no longer is another process waited for
        self._mine: dict[str, Row] = {}  # put by this process: written again if need be
        self._token: str | None = None  # of the file seen last; each new file draws another
        self._said: list[str] = []
        self._foreign: set[object] = set()  # keys of rows that cfp did not write
        self._told_foreign = 0  # of them

    @staticmethod
    def open(cache_dir: str | os.PathLike[str] | None = None, ends: float = math.inf) -> Store:
        """Opens the store of a folder for a budget that `ends` at a time of `time.monotonic()`."""
        store = Store(store_folder(cache_dir) / "measurements.sqlite", ends)
        store._do(lambda connection: None)
        return store

    def close(self) -> None:
        """Reads what this process has put once more: were it damaged, it is written again here."""
        self.get_many(self._mine)
        self._mine.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def get(self, key: str) -> Record | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Record]:
        """Returns the records that are there, in the order of `keys`."""
        wanted = list(dict.fromkeys(keys))

        def find(connection: sqlite3.Connection) -> dict[str, Record]:
            found = {}
            for start in range(0, len(wanted), 500):  # SQLite bounds the ? of a statement
                some = wanted[start : start + 500]
                where = f"WHERE key IN ({', '.join('?' * len(some))})"
                records = read(connection, self._foreign, where, some)
                found.update({record.key: record for record in records})
            return {key: found[key] for key in wanted if key in found}

        return self._do(find)

    def put(self, record: Record) -> None:
        """Writes a record, which is on the disk when this returns; it replaces one of the same
        key."""
        row = row_of(record)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(PUT, row)
            self._mine[record.key] = row

        self._do(write)

    def entries(self) -> Iterator[Record]:
        """Yields all records, oldest first, as they were when the iteration began."""
        order = "ORDER BY made_at, key"
        yield from self._do(lambda connection: read(connection, self._foreign, order))

    def distrust(self, names: Sequence[str], why: str) -> None:
        """Warns of records that were not used: they are not what a measurement is."""
        several = "s are" if len(names) > 1 else " is"
        warnings.warn(
            f"{len(names)} measurement{several} ignored in {self.path} and made again, not being "
            f"as cfp writes them ({names[0]}: {why}).",
            StoreWarning,
            stacklevel=3,
        )

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        failed: bool = False,
        everything: bool = False,
    ) -> int:
        """Removes the records that meet every condition given; says how many. The file shrinks."""
        if older_than_s is None and not (failed or everything):
            return 0

        def leaves(record: Record) -> bool:
            return (older_than_s is None or record.made_at < time.time() - older_than_s) and (
                record.failed or not failed
            )

        def remove(connection: sqlite3.Connection) -> int:
            if everything:
                (count,) = connection.execute("SELECT count(*) FROM measurements").fetchone()
                connection.execute("DELETE FROM measurements")
                self._mine.clear()
                return int(count)
            records = read(connection, self._foreign)
            keys = [record.key for record in records if leaves(record)]
            with transaction(connection):
                connection.executemany(
                    "DELETE FROM measurements WHERE key = ?", ((key,) for key in keys)
                )
            for key in keys:
                self._mine.pop(key, None)
            return len(keys)

        return self._do(remove)

    @property
    def size_bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Returns what one call returns: it runs in turn, on a sound store, and only then the
        warnings follow."""
        try:
            with self._turn():
                try:
                    return self._attempt(work)
                except UnreadableError as found:
                    unreadable = found
                try:
                    self._set_aside(unreadable)
                    return self._attempt(work)
                except UnreadableError as again:
                    raise CfpError(
                        f"{self.path} was started anew, and again it {again}. Give another folder "
                        "with cache_dir / --cache-dir."
                    ) from again
        finally:
            if len(self._foreign) > self._told_foreign:
                self._told_foreign = len(self._foreign)
                self._said.append(
                    f"{self._told_foreign} rows of {self.path} are ignored: cfp did not write "
                    "them. `cfp cache prune --all` removes them with all others."
                )
            said, self._said = self._said, []
            for text in said:
                warnings.warn(text, StoreWarning, stacklevel=4)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            left_s = max(self._ends - time.monotonic(), AFTER_S)
            with held(self.path.with_suffix(".lock"), min(BUSY_S, left_s)):
                yield
        except StillHeld as who:
            raise CfpError(
                f"The measurements in {self.path.parent} are held by {who}: end it, or give "
                "another folder with cache_dir / --cache-dir."
            ) from None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error

    def _attempt(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._connected() as connection:
            self._ready(connection)
            return work(connection)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(connect(self.path)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is None:  # not SQLite's word but Python's: we misuse it
                raise
            if code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ:
                raise UnreadableError(f"is damaged ({error})") from error
            raise self._unusable(str(error)) from error

    def _ready(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == FORMAT:
            (token,) = connection.execute("SELECT max(token) FROM born").fetchone()
            if self._token not in (None, token):  # another process set the old file aside
                missing = PUT.replace("REPLACE", "IGNORE", 1)
                with transaction(connection):
                    connection.executemany(missing, self._mine.values())
            self._token = token
        elif version > FORMAT:
            raise CfpError(
                f"{self.path} was made by a newer cfp (its format is {version}, this cfp reads "
                f"{FORMAT}): update cfp, or give another folder with cache_dir / --cache-dir."
            )
        elif version or connection.execute("PRAGMA page_count").fetchone() != (0,):
            raise UnreadableError("is not a store of measurements")
        else:
            if self._token is not None:
                self._said.append(
                    f"{self.path} was removed or emptied by someone; a new one was started with "
                    f"the {len(self._mine)} measurements of this run."
                )
            self._start(connection, self._mine)

    def _start(self, connection: sqlite3.Connection, rows: Mapping[str, Row]) -> None:
        token = secrets.token_hex(8)
        connection.execute("PRAGMA auto_vacuum = FULL")  # so that the file shrinks after a prune
        with transaction(connection):
            connection.execute(TABLE)
            connection.execute("CREATE TABLE born (token TEXT NOT NULL)")
            connection.execute("INSERT INTO born VALUES (?)", (token,))
            connection.executemany(PUT, rows.values())
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._token = token

    def _set_aside(self, found: UnreadableError) -> None:
        rows = {**self._mine, **salvage(self.path)}
        aside = _next_free(self.path)
        for companion in _COMPANIONS:
            try:
                os.rename(f"{self.path}{companion}", f"{aside}{companion}")
            except FileNotFoundError:
                continue
        self._said.append(
            f"{self.path} {found} and was set aside as {aside}; a new one was started with the "
            f"{len(rows)} measurements that could be kept."
        )
        with self._connected() as connection:
            self._start(connection, rows)

    def _unusable(self, reason: str) -> CfpError:
        return CfpError(
            f"The measurements in {self.path.parent} cannot be read and written ({reason}): give "
            "another folder with cache_dir / --cache-dir."
        )


def store_folder(cache_dir: str | os.PathLike[str] | None) -> Path:
    """Returns the folder that is given, or the usual one: measurements and plans are kept there."""
    folder = _default_folder() if cache_dir is None else Path(cache_dir).expanduser()
    return folder.absolute()


def _default_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # its specification: a relative one is ignored
        return Path(given, "cfp")
    try:
        return Path.home() / ".cache" / "cfp"
    except RuntimeError as error:
        raise CfpError(
            "There is no home folder to keep measurements in: give a folder with cache_dir / "
            "--cache-dir."
        ) from error


def _next_free(path: Path) -> str:
    number = 1
    while any(os.path.lexists(f"{path}.damaged-{number}{end}") for end in _COMPANIONS):
        number += 1
    return f"{path}.damaged-{number}"
