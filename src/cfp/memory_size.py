"""How people write an amount of memory: `12GiB`, `500MB`; a plain number is bytes. How we do."""

from __future__ import annotations

import re

from cfp.errors import CfpError

UNITS = {"": 1, "b": 1}
UNITS |= {f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")}
UNITS |= {f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")}
MOST_BYTES = 2.0**63  # no address is larger
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


def parse_memory(text: str) -> int:
    """Returns the bytes of a text such as `12GiB` or `500MB`."""
    found = _TEXT.fullmatch(text.strip().lower())
    if found is None or found[2] not in UNITS:
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        raise CfpError(f"{shown!r} is not an amount of memory: write 12GiB, 500MB or bytes.")
    amount = float(found[1]) * UNITS[found[2]]
    if not amount < MOST_BYTES:
        raise CfpError(f"{text[:20]!r}... is too much memory: write 12GiB, 500MB or bytes.")
    return round(amount)


def bytes_text(count: float) -> str:
    """Returns `457732` as `447.0 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
