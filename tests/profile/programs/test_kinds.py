"""Options of a distinct segment: layouts that hold, and programs that still compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

from cfp.analysis import Analysis
from cfp.layouts import Layouts, propagate, sharding
from cfp.layouts.layout import fits
from cfp.layouts.state import State
from cfp.profile.programs.kinds import Option, shift_dims
from cfp.profile.programs.lower import carried, fills, lower, sliced
from cfp.segments.extract import Extract
from cfp.segments.fill import example_inputs
from cfp.trace import is_key
from cfp.trace.evaluate import rebuild
from tests.layouts.check import check_layouts
from tests.profile.cases import (
    CASES,
    STATES,
    Untouched,
    accumulating,
    foreign,
    kinds,
    mesh,
    model,
    random_option,
)


@pytest.mark.parametrize("name", CASES)
def test_random_options_lie_consistently(name: str) -> None:
    for kind in kinds(CASES[name]()):
        for seed in range(3):  # a state each
            option = random_option(kind, seed)
            for extract, layouts in zip(kind.extracts, kind.layouts(option), strict=True):
                check(extract, layouts)
            if kind.chained is not None and seed == 2:
                check(kind.chained, kind.chained_layouts(option))


def test_random_options_on_two_axes() -> None:
    for analysis in (model("gpt", (2, 2)), model("llama", (2, 2), scan=True, checkpoint=True)):
        for kind in kinds(analysis):
            option = random_option(kind, kind.index)
            for extract, layouts in zip(kind.extracts, kind.layouts(option), strict=True):
                check(extract, layouts)


def check(extract: Extract, layouts: Layouts) -> None:
    check_layouts(extract.graph, extract.blocks, layouts, extract.feedback)
    for value, layout in layouts.known.items():
        assert fits(layout, extract.graph.values[value].shape, extract.blocks.mesh_shape)


def test_a_plain_option_lies_as_its_strategies_alone_say() -> None:
    kind = kinds(model("gpt"))[1]
    (extract,) = kind.extracts
    option = random_option(kind, 5, State.BLOCK)
    (layouts,) = kind.layouts(option)
    assert layouts == propagate(
        extract.graph, extract.blocks, kind.chosen(option), (4,), feedback=extract.feedback
    )


def test_spaces_and_names() -> None:
    embed, layer, head = kinds(model("gpt", layers=4))
    assert (embed.times, layer.times, head.times) == (1, 4, 1)
    assert layer.space == np.prod([len(choices) for choices in layer.strategies])
    shown = {
        layer.show(Option((a, b, c, d)))
        for a in range(3)
        for b in range(3)
        for c in range(3)
        for d in range(3)
    }
    assert len(shown) == layer.space == 81
    assert layer.show(Option((0, 0, 0, 0), State.ZERO1)).endswith("(zero1)")
    loop = kinds(model("llama", layers=7, scan=True, checkpoint=True))[1]
    assert loop.times == 7


def test_shifted_dims() -> None:
    assert shift_dims((0, None, 2), 1) == (1, None, 3)
    assert shift_dims((0, None, 2), -1) == (None, None, 1)
    assert shift_dims((1,), 0) == (1,)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=str)
def test_a_stack_lies_as_its_slices(state: State, mesh_shape: tuple[int, ...]) -> None:
    analysis = model("llama", mesh_shape, scan=True, checkpoint=True)
    kind = kinds(analysis)[1]
    body, once = kind.extracts
    assert len(kind.slices) == len(body.blocks.parameters), "every stacked parameter"
    for link in kind.slices:
        outside = once.graph.values[once.graph.inputs[link.outside]]
        inside = body.graph.values[body.graph.inputs[link.inside]]
        assert outside.shape == (2, *inside.shape)
    for seed in range(2):
        option = random_option(kind, seed, state)
        inner, outer = kind.layouts(option)
        for link in kind.slices:
            assert outer.inputs[link.outside] == shift_dims(inner.inputs[link.inside], link.shift)
        for link in kind.stacks:
            wanted = shift_dims(outer.inputs[link.outside], -link.shift)
            assert inner.outputs[link.inside] == wanted


def test_what_a_loop_closes_over_lies_alike_in_and_out() -> None:
    """Parameters that every iteration reads whole (an RNN, accumulated gradients)."""
    for name in ("accumulate", "rnn"):
        for kind in kinds(foreign(name)):
            if len(kind.extracts) < 2:
                continue
            body, once = kind.extracts
            both = set(body.inputs) & set(once.inputs)
            assert both
            for seed in range(6):
                inner, outer = kind.layouts(random_option(kind, seed))
                for value in both:
                    if body.graph.values[body.graph.inputs[body.inputs.index(value)]].shape:
                        there = inner.inputs[body.inputs.index(value)]
                        assert outer.inputs[once.inputs.index(value)] == there


@pytest.mark.parametrize("state", STATES)
def test_training_state_is_split_as_asked(state: State) -> None:
    """Every axis is used, where dims divide: all of the tiny model's but the scales of norms."""
    kind = kinds(model("gpt"))[1]
    (extract,) = kind.extracts
    for seed in range(2):
        (layouts,) = kind.layouts(random_option(kind, seed, state))
        by_path = dict(zip(extract.graph.input_paths, layouts.inputs, strict=True))
        for path, layout in by_path.items():
            if ".mu" in path or ".nu" in path:
                if state is not State.BLOCK:
                    assert layout != (None,), path
                if state is not State.ZERO1:
                    tail = path.split(".mu" if ".mu" in path else ".nu")[1]
                    assert layout == by_path[f"state.params{tail}"]
            elif path.startswith("state.params") and state is State.FSDP:
                assert layout != (None,), path


LOWERED: list[tuple[str, Any, int, int]] = [
    ("dropout and keys, blocks", lambda: model("gpt"), 1, 0),
    ("zero1 head", lambda: model("gpt"), 2, 1),
    ("two axes, fsdp embedding with keys", lambda: model("gpt", (2, 2)), 0, 2),
    ("loop body", lambda: model("llama", scan=True, checkpoint=True), 1, 2),
    ("micro-batch", accumulating, 2, 0),
]


@pytest.mark.parametrize(
    ("make", "index", "seed"), [x[1:] for x in LOWERED], ids=[x[0] for x in LOWERED]
)
def test_a_lowered_program_computes_the_same(make: Any, index: int, seed: int) -> None:
    analysis: Analysis = make()
    kind = kinds(analysis)[index]
    option = random_option(kind, seed)
    extract, layouts = kind.extracts[0], kind.layouts(option)[0]
    check_lowered(extract, layouts)


def check_lowered(extract: Extract, layouts: Layouts) -> None:
    """Compares the lowered program with the extract's graph; a loop is run as often, and carried
    by hand."""
    on = mesh(extract.blocks.mesh_shape)
    graph = extract.graph
    exported = jax.export.deserialize(bytearray(lower(extract, layouts, on)))
    assert exported.nr_devices == on.size
    turns = [example_inputs(graph, graph.inputs, seed) for seed in range(extract.iterations)]
    carries, slices = carried(extract, layouts), sliced(extract, layouts)
    for inputs in turns[1:]:
        for i in set(range(len(inputs))) - slices:
            inputs[i] = turns[0][i]
    given = [
        _stack(column) if i in slices else _bits(column[0])
        for i, column in enumerate(zip(*turns, strict=True))
    ]
    asked = fills(extract, layouts)
    assert [(x.shape, str(x.dtype)) for x in given] == [(f.shape, f.dtype) for f in asked]
    lie = [shift_dims(at, int(i in slices)) for i, at in enumerate(layouts.inputs)]
    placed = [jax.device_put(x, sharding(on, at)) for x, at in zip(given, lie, strict=True)]
    results = jax.jit(exported.call)(*placed)
    once = jax.jit(lambda *x: rebuild(graph, x, Untouched()))
    found: list[list[Any]] = []
    for inputs in turns:
        for argument, result in carries.items() if found else ():
            inputs[argument] = found[-1][result]
        found.append(once(*inputs))
    for n, (value, layout) in enumerate(zip(graph.outputs, layouts.outputs, strict=True)):
        what = graph.describe(value)
        stacked = extract.iteration is not None and n not in carries.values()
        a, b = results[n], _stack([one[n] for one in found]) if stacked else found[-1][n]
        lies = shift_dims(layout, int(stacked))
        assert a.sharding.is_equivalent_to(sharding(on, lies), a.ndim), what
        scale = float(np.max(np.abs(np.nan_to_num(np.asarray(b, np.float64), posinf=0, neginf=0))))
        rounding = 2**-7 if "bfloat16" in str(a.dtype) else 1e-3
        np.testing.assert_allclose(a, b, rtol=rounding, atol=1e-4 * max(scale, 1e-3), err_msg=what)


def _bits(x: Any) -> Any:
    return jax.random.key_data(x) if is_key(x.dtype) else x


def _stack(column: Sequence[Any]) -> Any:
    return np.stack([np.asarray(_bits(x)) for x in column])
