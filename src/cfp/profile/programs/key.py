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
from cfp.profile.programs.machine import Machine
from cfp.segments.extract import Extract
from cfp.trace import Graph, Op
from cfp.trace.callbacks import DEBUG, debug_params

FORMAT = 3  # raise it when the meaning of a stored measurement changes
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def program_digest(extract: Extract) -> str:
    """Returns a digest of a program: equations, shapes, dtypes, constants, and feedback."""
    return _hash("\n".join(_lines(extract)))


def job_key(machine: Machine, program: str, layouts: Layouts) -> str:
    """Returns the name of a measurement: a program, how its tensors lie, and where it ran."""
    lie: list[Any] = [
        layouts.inputs,
        layouts.outputs,
        sorted(layouts.values.items()),
        sorted(layouts.uses.items()),
        sorted(layouts.sums.items()),
    ]
    if layouts.via:
        lie.append(sorted(layouts.via.items()))
    if layouts.entries:
        entries = sorted(layouts.entries.items())
        lie.append([[where, one.number, one.layout, one.via] for where, one in entries])
    if layouts.again:
        # before, it could run beside the forward pass, which is other memory
        lie.append(["after the forward pass", *(one.to_json() for one in layouts.again)])
    return key_of(machine, program, lie)


def key_of(machine: Machine, *what: Any) -> str:
    return _hash(json.dumps([FORMAT, machine.to_json(), *what], sort_keys=True))


def _lines(extract: Extract) -> Iterable[str]:
    graph = extract.graph
    texts: dict[Op, str] = {}
    for value in graph.inputs:
        yield f"in {graph.values[value].show()}"
    for value, constant in sorted(graph.constants.items()):
        yield f"constant {value} {_constant(constant)}"
    for equation in graph.equations:
        op = equation.op
        if op.primitive in DEBUG:  # programs are measured without
            continue
        if op not in texts:
            texts[op] = _op(graph, op)
        yield f"{equation.outputs} = {texts[op]} {equation.inputs} {equation.role.value}"
    for loop in graph.loops:  # a whole step has them, a segment's program does not
        yield f"loop {loop.parent} {loop.length} {loop.reverse} {loop.carries} {loop.twin}"
    yield f"out {graph.outputs} round {sorted(extract.in_place.items())}"
    if extract.iteration is not None:
        carries, varies = (
            sorted(extract.iteration.carries.items()),
            sorted(extract.iteration.varies),
        )
        yield f"loop of {extract.iterations} carries {carries} varies {varies}"


def _op(graph: Graph, op: Op) -> str:
    bound = debug_params(op.primitive, op.params, "left out")
    params = ", ".join(f"{name}={_plain(value)}" for name, value in sorted(bound.items()))
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
