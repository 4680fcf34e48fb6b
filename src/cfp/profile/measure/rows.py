"""The rows of the store's file: one for each measurement, with a digest that guards it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1  # of the file: raise it when its columns change
BUSY_S = 30.0  # seconds to wait for another process, whose transaction takes milliseconds
LATEST_S = 1e11  # seconds since 1970, in the year 5138: what can be shown as a date
_COLUMNS = "key, program, name, environment, document, made_at, digest"
PUT = f"INSERT OR REPLACE INTO measurements ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
TABLE = """CREATE TABLE measurements (
    key TEXT PRIMARY KEY NOT NULL, program TEXT NOT NULL, name TEXT NOT NULL,
    environment TEXT NOT NULL, document TEXT NOT NULL, made_at REAL NOT NULL, digest TEXT NOT NULL
)"""

Row = tuple[str, str, str, str, str, float, str]


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement. `key` is the address of its content, `program` the program's alone.

    `name` and `environment` are for people; `document` is JSON, with `failed` where it failed.
    """

    key: str
    program: str
    name: str
    environment: str
    document: dict[str, Any]
    made_at: float

    @property
    def failed(self) -> bool:
        return self.document.get("failed") is not None


class UnreadableError(Exception):
    """What is wrong with the file, as the predicate of a sentence."""


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    connection.text_factory = lambda text: text.decode(errors="replace")  # the digest then differs
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Runs what is inside as one transaction; if it fails, it is undone when the connection
    closes."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def read(
    connection: sqlite3.Connection,
    foreign: set[object],
    rest: str = "",
    values: Iterable[str] = (),
) -> list[Record]:
    """Returns the records; the keys of rows that cfp did not write go into `foreign`."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM measurements {rest}", tuple(values))
    found = []
    for row in rows:
        record = _record_of(row)
        if record is None:
            foreign.add(row[0])
        else:
            found.append(record)
    return found


def row_of(record: Record) -> Row:
    document = json.dumps(record.document)
    made_at = float(record.made_at)
    fields = (record.key, record.program, record.name, record.environment, document, made_at)
    return (*fields, _digest(fields))


def _record_of(row: Row) -> Record | None:
    """Returns the record of a row; None for a row that someone else wrote, which is whole but not
    what cfp writes."""
    *fields, digest = row
    if _digest(fields) != digest:
        raise UnreadableError("is damaged (a measurement is not as it was written)")
    made_at = row[5]
    try:
        document = json.loads(row[4])
    except (TypeError, ValueError, RecursionError):
        return None
    texts = all(isinstance(text, str) for text in row[:4])
    if not texts or not isinstance(document, dict):
        return None
    if not isinstance(made_at, float) or not 0 <= made_at < LATEST_S:
        return None
    return Record(row[0], row[1], row[2], row[3], document, made_at)


def _digest(fields: Iterable[object]) -> str:
    """Returns a digest of a row: SQLite does not see a changed byte inside a text, which would be a
    wrong number and later a wrong plan."""
    return hashlib.sha256(ascii(tuple(fields)).encode()).hexdigest()[:16]


def salvage(path: Path) -> dict[str, Row]:
    """Returns the sound rows of a damaged store: read from both ends until each meets the
    damage."""
    rows: dict[str, Row] = {}
    for order in ("ASC", "DESC"):
        try:
            with closing(connect(path)) as connection:
                connection.execute("PRAGMA writable_schema = ON")  # bears with a truncated file
                if connection.execute("PRAGMA user_version").fetchone() != (FORMAT,):
                    return {}
                query = f"SELECT {_COLUMNS} FROM measurements NOT INDEXED ORDER BY rowid {order}"
                for row in connection.execute(query):
                    if _digest(row[:-1]) == row[-1]:
                        rows.setdefault(row[0], row)
        except sqlite3.Error:
            continue
    return rows
