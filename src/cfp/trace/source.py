"""The user's source line of an equation or an error, found on demand: reading frames is slow.

A line is the user's if it is in no library: not in the standard library, not among the installed
packages, and not in cfp itself, whose built-in models aside. A step may run through libraries alone
(a model of someone else's package); then the innermost line outside JAX has to do.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

from jax._src import source_info_util

from cfp.trace.graph import Equation

_CFP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MODELS = os.path.join(_CFP, "models") + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def source_line(equation: Equation) -> str:
    """Returns `file.py:12 (function)` of the innermost frame that is the user's, or `unknown`.

    JAX's own functions may have no such frame; then the calls they were inlined from have.
    """
    outside: Any = None
    for eqn in (equation.origin, *reversed(equation.calls)):
        for frame in _frames(eqn):
            outside = outside or frame
            if not in_library(frame.file_name):
                return _text(frame)
    return "unknown" if outside is None else _text(outside)


def error_line(error: BaseException) -> str | None:
    """Returns `file.py:12` of the user's innermost line that an error was raised from; None where
    it was raised from no line of theirs."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not in_library(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return None


def in_one_line(error: BaseException) -> str:
    """Returns `TypeError: what it says (file.py:12)`, with the user's line."""
    said = (error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    reason = (said.splitlines() or ["no message"])[0].rstrip(".")
    line = error_line(error)
    return f"{type(error).__name__}: {reason}" + (f" ({line})" if line else "")


@functools.cache
def in_library(file_name: str) -> bool:
    """Returns whether a file is part of Python, of an installed package or of cfp, and not the
    user's."""
    if file_name.startswith(_MODELS):
        return False
    if file_name.startswith(("<frozen ", _CFP + os.sep)):
        return True
    return any(part in file_name for part in _INSTALLED) or file_name.startswith(_standard())


@functools.cache
def _standard() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] + os.sep for name in ("stdlib", "platstdlib")})


def _frames(eqn: Any) -> Iterator[Any]:
    """Yields the frames outside JAX, innermost first, up to where cfp called the step."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if frame.file_name.startswith(_CFP + os.sep) and not frame.file_name.startswith(_MODELS):
            return
        yield frame


def _text(frame: Any) -> str:
    return f"{os.path.basename(frame.file_name)}:{frame.start_line} ({frame.function_name})"
