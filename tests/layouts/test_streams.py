"""Split streams as layouts: what lies between blocks is split by rows, forward and backward, and
gathered where the next block reads it."""

from __future__ import annotations

import itertools

import pytest

from cfp.layouts import Layout, Layouts
from cfp.profile.explore.streams import split_streams
from cfp.profile.programs.kinds import Kind, Option
from cfp.trace import Role
from tests.layouts.check import check_layouts
from tests.profile.cases import CASES, kinds, model

OUT, IN, STREAM = "output features", "input features", "input features (split stream)"
MEGATRON = f"{OUT}, {IN}, {OUT}, {IN}"


def laid(kind: Kind, name: str) -> Layouts:
    combos = itertools.product(*(range(len(choices)) for choices in kind.choices))
    option = next(o for o in map(Option, combos) if kind.show(o) == name)
    found = kind.layouts(option)[0]
    check_layouts(kind.extracts[0].graph, kind.extracts[0].blocks, found)
    return found


def layer(mesh_shape: tuple[int, ...] = (4,), batch: int = 8) -> Kind:
    analysis = model("gpt", mesh_shape, batch=batch)
    return next(kind for kind in kinds(analysis) if len(kind.strategies) == 4)


def crossing(kind: Kind, layouts: Layouts) -> list[Layout]:
    """How what comes in and goes out lies: the activation and the cotangent of each."""
    graph = kind.extracts[0].graph
    result = kind.extracts[0].blocks.blocks[1].seed_result
    shape = graph.values[result].shape
    pairs = [*zip(graph.inputs, layouts.inputs, strict=True)]
    pairs += zip(graph.outputs, layouts.outputs, strict=True)
    return [layout for value, layout in pairs if graph.values[value].shape == shape]


@pytest.mark.parametrize(("batch", "dim"), [(8, 0), (2, 1)])
def test_what_crosses_between_segments_lies_split(batch: int, dim: int) -> None:
    """It is split by the batch, or by the sequence where the batch does not divide."""
    kind = layer(batch=batch)
    assert crossing(kind, laid(kind, MEGATRON)) == [(None,)] * 4
    assert crossing(kind, laid(kind, MEGATRON.replace(IN, STREAM))) == [(dim,)] * 4


def test_where_another_axis_splits_the_batch_the_stream_splits_the_sequence() -> None:
    kind = layer((2, 4))
    both = ", ".join(f"batch+{name}" for name in MEGATRON.split(", "))
    assert crossing(kind, laid(kind, both)) == [(0, None)] * 4
    assert crossing(kind, laid(kind, both.replace(IN, STREAM))) == [(0, 1)] * 4


def test_one_block_that_splits_the_stream_splits_it_for_the_segment() -> None:
    kind = layer()
    whole = laid(kind, MEGATRON.replace(IN, STREAM))
    first = laid(kind, f"{OUT}, {STREAM}, {OUT}, {IN}")
    last = laid(kind, f"{OUT}, {IN}, {OUT}, {STREAM}")
    assert crossing(kind, first) == crossing(kind, last) == crossing(kind, whole)


def test_the_backward_pass_mirrors_the_forward_pass() -> None:
    """Each half of a layer gathers what it reads and scatters its sums, and so does its gradient.
    Everything of the stream's size that lies between is split by rows."""
    kind = layer()
    layouts = laid(kind, MEGATRON.replace(IN, STREAM))
    graph = kind.extracts[0].graph
    shape = graph.values[kind.extracts[0].blocks.blocks[1].seed_result].shape
    gathered: dict[Role, set[int]] = {Role.FORWARD: set(), Role.BACKWARD: set()}
    for (equation, operand), layout in layouts.uses.items():
        value = graph.equations[equation].inputs[operand]
        if layouts.known[value] == (0,) and layout == (None,):
            gathered[graph.equations[equation].role].add(value)
    scattered = {
        role: [
            value
            for value, layout in layouts.sums.items()
            if layout == (None,) and layouts.values[value] == (0,)
            if graph.equations[graph.values[value].producer or 0].role is role
        ]
        for role in gathered
    }
    normed = gathered[Role.FORWARD]
    assert len(normed) == len(scattered[Role.FORWARD]) == len(scattered[Role.BACKWARD]) == 2
    assert len(gathered[Role.BACKWARD] - normed) == 2  # the cotangents of what was scattered
    heads = {(2,)}  # what attention makes has as many elements, split by heads
    found = {layouts.values[v] for v in layouts.values if graph.values[v].shape == shape}
    assert found == {(0,)} | heads


@pytest.mark.parametrize("name", CASES)
def test_every_segment_with_streams_has_layouts(name: str) -> None:
    """All blocks that have streams take their contracted candidates, and the others what comes."""
    checked = 0
    for kind in kinds(CASES[name]()):
        pairs = zip(kind.strategies, kind.streams, strict=True)
        combo = tuple(len(plain) if streams else 0 for plain, streams in pairs)
        if kind.has_streams(Option(combo)):
            for cut, found in zip(kind.extracts, kind.layouts(Option(combo)), strict=True):
                check_layouts(cut.graph, cut.blocks, found)
            checked += 1
        assert not split_streams(kind, Option(tuple(0 for _ in combo)))
    assert checked > 1
