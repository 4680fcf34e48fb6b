"""The user's source line of an equation, found on demand: reading frames is slow."""

from __future__ import annotations

import os

from jax._src import source_info_util

from cfp.trace.graph import Equation


def source_line(equation: Equation) -> str:
    """`file.py:12 (function)` of the innermost frame outside JAX, or `unknown`.

    JAX's own functions may have no such frame; then the calls they were inlined from have.
    """
    for eqn in (equation.origin, *reversed(equation.calls)):
        frame = source_info_util.user_frame(eqn.source_info.traceback)
        if frame is not None:
            return f"{os.path.basename(frame.file_name)}:{frame.start_line} ({frame.function_name})"
    return "unknown"
