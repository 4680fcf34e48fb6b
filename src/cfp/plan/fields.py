"""JSON read with suspicion: every field has a type, and a wrong one is named with its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfp.errors import CfpError

MAX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object; `where` is the file and the way to it."""

    where: str
    data: dict[str, Any]

    def has(self, name: str) -> bool:
        return name in self.data

    def is_null(self, name: str) -> bool:
        return self._get(name, object) is None

    def text(self, name: str) -> str:
        return self._get(name, str)  # type: ignore[no-any-return]

    def flag(self, name: str) -> bool:
        return self._get(name, bool)  # type: ignore[no-any-return]

    def number(self, name: str) -> float:
        value = self._get(name, (int, float))
        return float(self._not_flag(name, value))

    def integer(self, name: str) -> int:
        value: int = self._not_flag(name, self._get(name, int))
        if value < 0:
            raise self._wrong(name, "a number from 0 up")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.is_null(name) else self.integer(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.is_null(name) else self.text(name)

    def texts(self, name: str) -> list[str]:
        return self._list(name, str)

    def integers(self, name: str) -> list[int]:
        values = self._list(name, int)
        if any(isinstance(value, bool) or value < 0 for value in values):
            raise self._wrong(name, "a list of numbers from 0 up")
        return values

    def numbers(self, name: str) -> list[float]:
        return [float(self._not_flag(name, value)) for value in self._list(name, (int, float))]

    def object(self, name: str) -> Fields:
        return Fields(f"{self.where}: {name}", self._get(name, dict))

    def optional(self, name: str) -> Fields | None:
        return None if self.is_null(name) else self.object(name)

    def objects(self, name: str) -> list[Fields]:
        return [
            Fields(f"{self.where}: {name}[{i}]", entry)
            for i, entry in enumerate(self._list(name, dict))
        ]

    def entries(self) -> Iterator[tuple[str, Fields]]:
        for name in self.data:
            yield name, self.object(name)

    def spec(self, name: str) -> tuple[Any, ...]:
        """A PartitionSpec: per dim null, an axis, or a list of axes."""
        entries = self._get(name, list)
        for entry in entries:
            several = isinstance(entry, list) and all(isinstance(axis, str) for axis in entry)
            if not (entry is None or isinstance(entry, str) or several):
                raise self._wrong(name, "a list of mesh axes")
        return tuple(tuple(e) if isinstance(e, list) else e for e in entries)

    def mesh(self, name: str) -> dict[str, int]:
        axes = self.object(name)
        sizes = {axis: axes.integer(axis) for axis in axes.data}
        if not sizes or 0 in sizes.values():
            raise self._wrong(name, "a size from 1 up per axis")
        return sizes

    def _get(self, name: str, kind: Any) -> Any:
        if name not in self.data:
            raise CfpError(f"{self.where}: `{name}` is missing. Make the plan again.")
        value = self.data[name]
        if not isinstance(value, kind):
            raise self._wrong(name, "something else")
        return value

    def _list(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        values: list[Any] = self._get(name, list)
        if not all(isinstance(value, kind) for value in values):
            raise self._wrong(name, "something else")
        return values

    def _not_flag(self, name: str, value: Any) -> Any:
        if isinstance(value, bool):
            raise self._wrong(name, "a number")
        return value

    def _wrong(self, name: str, expected: str) -> CfpError:
        shown = json.dumps(self.data[name])
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        return CfpError(f"{self.where}: `{name}` is {shown}, where {expected} is expected.")


def read_fields(path: str | os.PathLike[str]) -> Fields:
    """The object in a JSON file."""
    source = Path(path)
    try:
        size = source.stat().st_size
        if size > MAX_BYTES:
            raise CfpError(f"{source} has {size} bytes: no plan is that large.")
        data = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise CfpError(f"Cannot read {source}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        reason = (str(error).splitlines() or ["nested too deeply"])[0]
        raise CfpError(f"{source} is damaged: it is not JSON ({reason}).") from error
    if not isinstance(data, dict):
        raise CfpError(f"{source} is not a plan of cfp: it holds a {type(data).__name__}.")
    return Fields(str(source), data)
