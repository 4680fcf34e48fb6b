"""What a program is, by content: the same text in any model, any process, any year.

`program_digest` covers every equation with all its parameters, not contractions alone as a
segment's fingerprint does: two segments that plan alike may still run differently. `job_key` adds
how its tensors lie and the machine: what a measurement is stored under.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from cfp.layouts import Layouts
from cfp.profile.machine import Machine
from cfp.segments.extract import Extract
from cfp.trace import Graph, Op

FORMAT = 1  # raise it when the meaning of a stored measurement changes
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def program_digest(cut: Extract) -> str:
    """Equations, shapes, dtypes, constants, and what goes round."""
    return _hash("\n".join(_lines(cut)))


def job_key(machine: Machine, program: str, layouts: Layouts) -> str:
    """The name of a measurement: a program, how its tensors lie, and where it ran."""
    lie: list[Any] = [
        layouts.inputs,
        layouts.outputs,
        sorted(layouts.values.items()),
        sorted(layouts.uses.items()),
        sorted(layouts.sums.items()),
    ]
    if layouts.via:
        lie.append(sorted(layouts.via.items()))
    if layouts.once:
        lie.append(["once", sorted(layouts.once.items())])
    return key_of(machine, program, lie)


def key_of(machine: Machine, *what: Any) -> str:
    return _hash(json.dumps([FORMAT, machine.to_json(), *what], sort_keys=True))


def _lines(cut: Extract) -> Iterable[str]:
    graph = cut.graph
    texts: dict[int, str] = {}
    for value in graph.inputs:
        yield f"in {graph.values[value].show()}"
    for value, constant in sorted(graph.constants.items()):
        yield f"constant {value} {_constant(constant)}"
    for equation in graph.equations:
        op = equation.op
        if id(op) not in texts:
            texts[id(op)] = _op(graph, op)
        yield f"{equation.outputs} = {texts[id(op)]} {equation.inputs} {equation.role.value}"
    for loop in graph.loops:  # a whole step has them, a segment's program does not
        yield f"loop {loop.parent} {loop.length} {loop.reverse} {loop.carries} {loop.twin}"
    yield f"out {graph.outputs} round {sorted(cut.goes_round.items())}"


def _op(graph: Graph, op: Op) -> str:
    params = ", ".join(f"{name}={_plain(value)}" for name, value in sorted(op.params.items()))
    return f"{op.primitive}[{params}] {op.out_shapes} {list(map(str, op.out_dtypes))}"


def _plain(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _constant(value)
    return _ADDRESS.sub("", str(value))


def _constant(value: Any) -> str:
    try:
        array = np.asarray(value)
    except TypeError:  # a typed PRNG key has no plain form
        return str(value)
    return f"{array.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
