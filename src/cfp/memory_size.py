"""How people write an amount of memory: `12GiB`, `500MB`; a plain number is bytes. How we do."""

from __future__ import annotations

import re

from cfp.errors import CfpError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")}
_UNITS |= {f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


def parse_memory(text: str) -> int:
    """Bytes."""
    found = _TEXT.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise CfpError(f"{text!r} is not an amount of memory: write 12GiB, 500MB or bytes.")
    return round(float(found[1]) * _UNITS[found[2]])


def bytes_text(count: float) -> str:
    """`457732` as `447.0 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
