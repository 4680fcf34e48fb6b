"""How people write a length of time: `90s`, `5m`, `1h30m`, `30d`; a plain number is seconds."""

from __future__ import annotations

import math
import re

from cfp.errors import CfpError

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_PARTS = re.compile(r"\s*".join(rf"(?:{_NUMBER}\s*{unit})?" for unit in UNITS_S))


def parse_duration(text: str) -> float:
    """Returns the seconds of a text such as `5m` or `1h30m`."""
    given = text.strip().lower()
    if re.fullmatch(_NUMBER, given):
        seconds = float(given)
    else:
        parts = _PARTS.fullmatch(given)
        if not given or parts is None:
            raise CfpError(f"{text!r} is not a length of time: write 90s, 5m, 1h30m or 30d.")
        numbers = zip(parts.groups(), UNITS_S.values(), strict=True)
        seconds = sum(float(number) * unit_s for number, unit_s in numbers if number is not None)
    if not math.isfinite(seconds):
        raise CfpError(f"{text[:20]!r}... is too long a time: write 90s, 5m, 1h30m or 30d.")
    return seconds
