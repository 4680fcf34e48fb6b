"""JSON read with suspicion: every field has a type, and a wrong one is named with its place.

A document may come from anyone. Reading it ends, in bounded memory: only plain files are opened, no
longer than `MAX_BYTES`; numbers are finite and fit 64 bits, texts are Unicode of at most `MAX_TEXT`
characters, and an object has every name once.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cfp.errors import CfpError

MAX_BYTES = 256 * 2**20  # a plan that fixes every tensor of 96 layers one by one has a tenth of it
MAX_TEXT = 2**20  # characters; the longest that we write lists the splits of some hundred segments
MAX_INTEGER = 2**63 - 1  # no tensor and no file has more of anything
MAX_AXES = 64  # numpy's arrays, and so JAX's meshes, have no more dims
_SHOWN = 40  # characters of a wrong value


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object; `where` is the file and the way to it."""

    where: str
    data: dict[str, Any]

    def has(self, name: str) -> bool:
        return name in self.data

    def is_null(self, name: str) -> bool:
        return self._get(name, object, "something") is None

    def text(self, name: str) -> str:
        value: str = self._get(name, str, "a text")
        self._check_text(name, value)
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._get(name, bool, "true or false")
        return value

    def number(self, name: str) -> float:
        expected = "a finite number"
        return self._number(name, self._get(name, (int, float), expected), expected)

    def integer(self, name: str) -> int:
        expected = "a whole number from 0 up"
        return self._integer(name, self._get(name, int, expected), expected)

    def optional_number(self, name: str) -> float | None:
        return None if self.is_null(name) else self.number(name)

    def optional_integer(self, name: str) -> int | None:
        return None if self.is_null(name) else self.integer(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.is_null(name) else self.text(name)

    def option(self, name: str) -> str | int | float | bool | None:
        """Returns a single value of any kind."""
        expected = "a text, a number, true, false or null"
        value = self._get(name, (str, int, float, bool, type(None)), expected)
        if isinstance(value, str):
            return self.text(name)
        if value is None or isinstance(value, bool):
            return value
        self._number(name, value, expected)
        return value  # type: ignore[no-any-return]

    def texts(self, name: str) -> list[str]:
        values = self._list(name, str, "a list of texts")
        for value in values:
            self._check_text(name, value)
        return values

    def integers(self, name: str) -> list[int]:
        expected = "a list of whole numbers from 0 up"
        return [self._integer(name, v, expected) for v in self._list(name, int, expected)]

    def numbers(self, name: str) -> list[float]:
        expected = "a list of finite numbers"
        return [self._number(name, v, expected) for v in self._list(name, (int, float), expected)]

    def object(self, name: str) -> Fields:
        return Fields(f"{self.where}: {name}", self._get(name, dict, "an object"))

    def optional(self, name: str) -> Fields | None:
        return None if self.is_null(name) else self.object(name)

    def objects(self, name: str) -> list[Fields]:
        return [
            Fields(f"{self.where}: {name}[{i}]", entry)
            for i, entry in enumerate(self._list(name, dict, "a list of objects"))
        ]

    def entries(self) -> Iterator[tuple[str, Fields]]:
        for name in self.data:
            yield name, self.object(name)

    def spec(self, name: str) -> tuple[Any, ...]:
        """Returns a PartitionSpec, written as null, an axis or a list of axes for each dim."""
        expected = 'a list such as [null, "x", ["y", "z"]]'
        entries = self._get(name, list, expected)
        for entry in entries:
            several = isinstance(entry, list) and all(isinstance(axis, str) for axis in entry)
            if not (entry is None or isinstance(entry, str) or several):
                raise self.wrong(name, expected)
        return tuple(tuple(e) if isinstance(e, list) else e for e in entries)

    def mesh(self, name: str) -> dict[str, int]:
        axes = self.object(name)
        sizes = {axis: axes.integer(axis) for axis in axes.data}
        if not sizes or 0 in sizes.values():
            raise self.wrong(name, "a size from 1 up per axis")
        if len(sizes) > MAX_AXES:
            raise self.wrong(name, f"a size for each of at most {MAX_AXES} axes")
        return sizes

    def wrong(self, name: str, expected: str) -> CfpError:
        """Returns the error that says what is wrong with a field, without the whole value, which
        may be anything."""
        return CfpError(
            f"{self.where}: `{name}` is {_shown(self.data[name])}, where {expected} is expected."
        )

    def _get(self, name: str, kind: Any, expected: str) -> Any:
        if name not in self.data:
            raise CfpError(f"{self.where}: `{name}` is missing. Make the plan again.")
        value = self.data[name]
        if not isinstance(value, kind):
            raise self.wrong(name, expected)
        return value

    def _list(self, name: str, kind: type | tuple[type, ...], expected: str) -> list[Any]:
        values: list[Any] = self._get(name, list, expected)
        if not all(isinstance(value, kind) for value in values):
            raise self.wrong(name, expected)
        return values

    def _integer(self, name: str, value: int, expected: str) -> int:
        if isinstance(value, bool) or value < 0:
            raise self.wrong(name, expected)
        if value > MAX_INTEGER:
            raise self.wrong(name, f"{expected}, below 2^63,")
        return value

    def _number(self, name: str, value: float, expected: str) -> float:
        if isinstance(value, bool) or abs(value) > MAX_INTEGER or not math.isfinite(value):
            raise self.wrong(name, expected)
        return float(value)

    def _check_text(self, name: str, value: str) -> None:
        if len(value) > MAX_TEXT:
            raise self.wrong(name, f"a text of at most {MAX_TEXT} characters")
        if not is_unicode(value):
            raise self.wrong(name, "a text of whole Unicode characters")


class _Refused(ValueError):
    """What JSON's syntax allows, or Python's reader, and a plan does not have."""


def is_unicode(text: str) -> bool:
    """Returns whether a text has no lone surrogates, which JSON can write and nobody can print."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def read_fields(path: str | os.PathLike[str]) -> Fields:
    """Returns the object in a JSON file."""
    source = Path(path)
    try:
        content = _read(source)
        data = parse_strictly(content.decode("utf-8"))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        way = " Make one with `cfp plan` or `cfp template`." if missing else ""
        raise CfpError(f"Cannot read {source}: {error.strerror}.{way}") from error
    except _Refused as error:
        raise CfpError(f"{source} is damaged: {error}.") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        reason = (str(error).splitlines() or ["nested too deeply"])[0].rstrip(".")
        raise CfpError(f"{source} is damaged: it is not JSON ({reason}).") from error
    if not isinstance(data, dict):
        raise CfpError(
            f"{source} is not a plan of cfp: it holds a {type(data).__name__}. Name a file that "
            "`cfp plan` or `cfp template` wrote."
        )
    return Fields(str(source), data)


def parse_strictly(text: str) -> Any:
    """Parses JSON without what Python adds to it (NaN, Infinity) or takes silently: numbers too
    large for a float, and an object's name given twice, of which the last would count."""
    return json.loads(
        text,
        object_pairs_hook=_object,
        parse_int=_parse_integer,
        parse_float=_parse_float,
        parse_constant=_refuse_constant,
    )


def _read(source: Path) -> bytes:
    """Returns the content of a plain file. Others are refused before they are read: a device has no
    end, and a pipe keeps one waiting."""
    handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CfpError(f"Cannot read {source}: it is a device or a pipe, not a plain file.")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise CfpError(f"{source} has {status.st_size} bytes: no plan is that large.")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for name in found:
        if len(name) > MAX_TEXT or not is_unicode(name):
            raise _Refused(f"an object has the name {_shown(name)}")
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise _Refused(f"an object has the name {_shown(twice)} twice")
    return found


def _parse_integer(digits: str) -> int:
    if len(digits) > len(str(-MAX_INTEGER)):
        raise _Refused(f"a number has {len(digits)} digits")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused(f"the number {digits[:_SHOWN]} is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not a number that JSON has")


def _shown(value: Any) -> str:
    """Returns the beginning of a value as JSON, without writing all of a long one."""
    if isinstance(value, str):
        text = json.dumps(value[:_SHOWN])
        return text if len(value) <= _SHOWN else text[:-1] + '..."'
    shown = ""
    for part in json.JSONEncoder().iterencode(value):
        shown += part[: _SHOWN + 1]
        if len(shown) > _SHOWN:
            return shown[:_SHOWN] + "..."
    return shown
