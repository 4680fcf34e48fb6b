"""Stage 1 turns a step into a `Graph`. It is the only room that touches JAX's private parts."""

from cfp.trace.graph import (
    LOOP_ENTER,
    LOOP_EXIT,
    LOOP_PRIMITIVES,
    LOOP_SLICE,
    LOOP_STACK,
    Equation,
    Graph,
    Loop,
    Op,
    Role,
    Value,
    is_key,
)
from cfp.trace.source import source_line
from cfp.trace.tracer import trace

__all__ = [
    "LOOP_ENTER",
    "LOOP_EXIT",
    "LOOP_PRIMITIVES",
    "LOOP_SLICE",
    "LOOP_STACK",
    "Equation",
    "Graph",
    "Loop",
    "Op",
    "Role",
    "Value",
    "is_key",
    "source_line",
    "trace",
]
