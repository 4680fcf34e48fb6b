"""What is measured is what runs: a layer's program sends what one more layer makes a full plan
send, to the byte, and two in a row twice that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax.sharding import Mesh

from cfp import Analysis, analyze
from cfp.layouts import Layouts
from cfp.links.collectives import parse_collectives
from cfp.models import config, make_step
from cfp.plan.assemble import assemble_plan
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import lower
from cfp.segments.extract import Extract

DEVICES = 4


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:DEVICES]), ("x",))


def sent(compiled: Any) -> Counter[str]:
    """Bytes by kind of collective."""
    total: Counter[str] = Counter()
    for found in parse_collectives(compiled.as_text(), DEVICES):
        total[found.kind] += found.bytes * found.times
    return total


def alone(extract: Extract, layouts: Layouts) -> Counter[str]:
    exported = jax.export.deserialize(bytearray(lower(extract, layouts, mesh())))
    shape: Any = jax.ShapeDtypeStruct
    jitted: Any = jax.jit(
        exported.call,
        in_shardings=exported.in_shardings_jax(mesh()),
        out_shardings=exported.out_shardings_jax(mesh()),
    )
    return sent(jitted.lower(*[shape(a.shape, a.dtype) for a in exported.in_avals]).compile())


def analysed(layers: int) -> tuple[Any, Analysis, Kind]:
    step, args = make_step(config("gpt", layers=layers), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(DEVICES,))
    return step, analysis, find_kinds(analysis)[1]


def whole(layers: int, option: Option) -> Counter[str]:
    """A full plan: every layer by the option, the rest data parallel."""
    step, analysis, layer = analysed(layers)
    kinds = find_kinds(analysis)
    options = [
        option if s.kind == layer.index else Option((0,) * len(kinds[s.kind].strategies))
        for s in analysis.segments
    ]
    interfaces = find_interfaces(analysis, kinds)
    plan = assemble_plan(step, analysis, mesh(), interfaces, options, name="uniform")
    return sent(plan.compiled())


@pytest.mark.parametrize("combo", [(0, 0, 1, 0), (1, 2, 0, 0)])
def test_a_layer_sends_what_it_adds_to_a_step(combo: tuple[int, ...]) -> None:
    option = Option(combo)
    _, _, kind = analysed(3)
    assert kind.chained is not None
    one = alone(kind.extracts[0], kind.layouts(option)[0])
    more = whole(3, option)
    more.subtract(whole(2, option))
    assert one
    assert {k: v for k, v in more.items() if v} == dict(one)
    both = alone(kind.chained, kind.chained_layouts(option))
    assert dict(both) == {k: 2 * v for k, v in one.items()}
