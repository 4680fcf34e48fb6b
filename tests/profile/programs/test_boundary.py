"""What crosses from segment to segment, against what the programs read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import cfp
from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.models import config, make_step
from cfp.profile import Option
from cfp.profile.programs.boundary import Crossing, find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import shift_dims
from cfp.profile.programs.requests import Resharding
from cfp.segments.extract import Extract, extract_program
from cfp.segments.program import Cutter
from cfp.trace import LOOP_ENTER, LOOP_PRIMITIVES, is_key
from tests.profile.cases import CASES, foreign, kinds, model, random_option

Short = tuple[int, int, str, tuple[int, ...], int]


def crossings(analysis: Analysis) -> tuple[Crossing, ...]:
    return find_interfaces(analysis, kinds(analysis)).crossings


def short(crossing: Crossing) -> Short:
    what = crossing.boundary
    return crossing.source, crossing.target, what.what, what.shape, crossing.times


def test_neighbours_of_a_gpt_exchange_an_activation_and_a_cotangent() -> None:
    layers = 4
    found = crossings(model("gpt", layers=layers))
    floats = Counter(short(c) for c in found if c.boundary.dtype == "float32")
    expected: list[Short] = []
    for left in range(layers + 1):  # embedding, layers, head
        expected.append((left, left + 1, "activation", (8, 32, 64), 1))
        expected.append((left + 1, left, "cotangent", (8, 32, 64), 1))
    assert floats == Counter(expected)
    rest = [short(c) for c in found if c.boundary.dtype != "float32"]
    assert rest == [(0, layers + 1, "activation", (8, 32, 1, 1), 1)], "the labels, for the lookup"
    assert len({c.boundary for c in found}) == 7, "inner layers share theirs"


def test_ends_are_where_the_programs_read_and_write() -> None:
    analysis = model("gpt", layers=4)
    for crossing in crossings(analysis):
        what = crossing.boundary
        for end, segment in ((what.source, crossing.source), (what.target, crossing.target)):
            assert end.kind == analysis.segments[segment].kind
            extract = kinds(analysis)[end.kind].extracts[end.extract]
            values = extract.graph.outputs if end.result else extract.graph.inputs
            tensor = extract.graph.values[values[end.position]]
            assert (tensor.shape, str(tensor.dtype)) == (what.shape, what.dtype)


def test_tied_weights_come_from_where_they_are_updated() -> None:
    analysis = model("bert", layers=3)
    head = len(analysis.segments) - 1
    (tied,) = [c for c in crossings(analysis) if short(c)[3] == (96, 64) and c.target == head]
    assert short(tied) == (0, head, "argument", (96, 64), 1)
    embed = kinds(analysis)[0].extracts[0]
    assert tied.boundary.source.position in embed.feedback.values()
    assert embed.graph.input_paths[tied.boundary.source.position] == "state.params['tokens']"
    back = [short(c) for c in crossings(analysis) if c.target == 0 and short(c)[3] == (96, 64)]
    assert back == [(head, 0, "cotangent", (96, 64), 1)], "its share of the gradient"


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_carry_crosses_from_one_iteration_to_the_next(layers: int) -> None:
    found = crossings(model("gpt", layers=layers, scan=True))
    expected: list[Short] = [
        (0, 1, "activation", (8, 32, 64), 1),
        (1, 2, "activation", (8, 32, 64), 1),
        (2, 1, "cotangent", (8, 32, 64), 1),
        (1, 0, "cotangent", (8, 32, 64), 1),
        (1, 1, "activation", (8, 32, 64), layers),
        (1, 1, "cotangent", (8, 32, 64), layers),
    ]
    assert Counter(short(c) for c in found if c.boundary.dtype == "float32") == Counter(expected)


def test_segments_of_one_loop_body_exchange_in_every_iteration() -> None:
    """Dense and expert layers in turn: three iterations of two segments. What goes round the loop
    lies as the first of them takes it in, and leaves so after the last iteration."""
    found = crossings(model("moe", layers=6, scan=True))
    activations = {(c.source, c.target): c.times for c in found if short(c)[2] == "activation"}
    cotangents = {
        (c.source, c.target): c.times
        for c in found
        if short(c)[2] == "cotangent" and len(c.boundary.shape) == 3
    }
    del activations[0, 3]  # the labels
    assert activations == {(0, 1): 1, (1, 2): 3, (2, 1): 3, (1, 3): 1}
    assert cotangents == {(3, 2): 1, (2, 1): 3, (1, 2): 3, (2, 0): 1}


def test_what_a_loop_slices_is_shifted() -> None:
    found = crossings(foreign("rnn"))
    assert {(c.boundary.shift, c.times) for c in found if c.boundary.shift} == {(-1, 16)}


def test_gradients_of_a_loop_are_made_where_their_parameters_are() -> None:
    """The bias of a dense layer has its gradient from the cotangent of the layer after it."""
    found = crossings(model("moe", layers=6, scan=True))
    assert {(c.boundary.shift, len(c.boundary.shape)) for c in found if c.source in (1, 2)} == {
        (0, 3)
    }


def test_a_decoder_reads_the_encoder_from_afar() -> None:
    analysis = foreign("encoder_decoder")
    far = [c for c in crossings(analysis) if abs(c.source - c.target) > 1]
    memory = [c for c in far if c.boundary.shape == (8, 20, 48)]
    assert {c.boundary.what for c in memory} == {"activation", "cotangent"}
    forward = [c for c in memory if c.boundary.what == "activation"]
    assert len({c.source for c in forward}) == 1, "the encoder's last"
    assert len({c.target for c in forward}) == 2, "both decoder layers"


@pytest.mark.parametrize(
    "analysis",
    [
        lambda: model("gpt", layers=4),
        lambda: model("llama", scan=True, checkpoint=True),
        lambda: model("moe", layers=6, scan=True),
    ],
)
def test_resharding_is_what_differs(analysis: Any) -> None:
    analysis = analysis()
    found = kinds(analysis)
    moved = 0
    for seed in range(3):
        lie = [kind.layouts(random_option(kind, seed + kind.index)) for kind in found]
        for crossing in crossings(analysis):
            what = crossing.boundary
            left = lie[what.source.kind][what.source.extract]
            right = lie[what.target.kind][what.target.extract]
            out = (left.outputs if what.source.result else left.inputs)[what.source.position]
            out = shift_dims(out, what.shift)
            into = right.inputs[what.target.position]
            needed = what.resharding(lie[what.source.kind], lie[what.target.kind])
            if out == into:
                assert needed is None
            else:
                assert needed == Resharding(what.shape, what.dtype, out, into)
                moved += 1
    assert moved, "some options differ"


EVERY = {
    **CASES,
    "gpt, 4 layers": lambda: model("gpt", layers=4),
    "moe, scan": lambda: model("moe", layers=6, scan=True),
    "accumulate": lambda: foreign("accumulate"),
    "rnn": lambda: foreign("rnn"),
    "clip": lambda: foreign("clip"),
}


@pytest.mark.parametrize("name", EVERY)
def test_nothing_that_is_read_is_forgotten(name: str) -> None:
    """Every tensor that a program reads lies there as its home says, or comes by a crossing."""
    analysis = EVERY[name]()
    covered = {(c.target, c.boundary.target) for c in crossings(analysis)}
    ends = {(target, end.extract, end.position) for target, end in covered}
    missing = [
        f"segment {segment}, program {extract}: {analysis.graph.describe(value)}"
        for segment, extract, position, value in needed(analysis)
        if (segment, extract, position) not in ends
    ]
    assert not missing


def needed(analysis: Analysis) -> Iterator[tuple[int, int, int, int]]:
    """Yields (segment, extract, position, value) of what comes from another segment, or from
    another program of the same one without a pair. Occurrences whose program is not quite the
    kind's (the first layer may also compute what all share) are left out on both sides: their ends
    are a guess.
    """
    graph = analysis.graph
    cutter = Cutter(graph, analysis.grouping, analysis.segmentation)
    feedback = find_feedback(graph, analysis.grouping.parameters)
    extracts: dict[tuple[int, int], Extract] = {}
    for segment in analysis.segments:
        for i, program in enumerate(cutter.programs(segment.index)):
            extracts[segment.index, i] = extract_program(
                graph, analysis.grouping, program, feedback
            )
    usual = {
        (segment, i): types(extract)
        == types(kinds(analysis)[analysis.segments[segment].kind].extracts[i])
        for (segment, i), extract in extracts.items()
    }
    makers = {value: place for place, extract in extracts.items() for value in extract.outputs}
    homes: dict[int, tuple[int, int]] = {}
    for place, extract in extracts.items():
        for position in extract.feedback.values():
            homes.setdefault(extract.inputs[position], place)
    for place, extract in extracts.items():
        for value in extract.inputs:
            homes.setdefault(value, place)
    for (segment, i), extract in extracts.items():
        kind = kinds(analysis)[analysis.segments[segment].kind]
        paired = {pair.inside for pair in kind.slices}
        if i == 1:
            paired = {pair.outside for pair in (*kind.slices, *kind.stacks)}
        if not usual[segment, i]:
            continue
        for position, value in enumerate(extract.inputs):
            tensor = graph.values[value]
            if not tensor.shape or is_key(tensor.dtype) or position in paired:
                continue
            for origin in origins(analysis, value):
                found = makers.get(origin)
                if found is None and origin in graph.inputs:
                    found = homes.get(origin)
                if found is not None and found != (segment, i) and usual[found]:
                    yield segment, i, position, value


def origins(analysis: Analysis, value: int) -> Iterator[int]:
    graph = analysis.graph
    while (producer := graph.values[value].producer) is not None:
        equation = graph.equations[producer]
        if equation.primitive not in LOOP_PRIMITIVES:
            break
        if equation.primitive == LOOP_ENTER:
            (carry,) = [
                pair for loop in graph.loops for pair in loop.carries if pair[0] == producer
            ]
            yield graph.equations[carry[1]].inputs[0]
        value = equation.inputs[0]
    yield value


def types(extract: Extract) -> list[tuple[Any, str]]:
    values = [*extract.graph.inputs, *extract.graph.outputs]
    return [(extract.graph.values[v].shape, str(extract.graph.values[v].dtype)) for v in values]


@pytest.mark.parametrize("name", ["bert", "gpt", "moe", "llama"])
@pytest.mark.parametrize("parts", [4, 8])
def test_what_is_split_by_the_batch_everywhere_is_resharded_nowhere(name: str, parts: int) -> None:
    """This holds for what a segment only adds to something, too: a cotangent of LLaMA's second
    branch."""
    sizes = {"layers": 2, "hidden": 128, "heads": 8, "seq": 32, "vocab": 512}
    step, args = make_step(config(name, "small", batch=16, **sizes), abstract=True)
    analysis = cfp.analyze(step, *args, mesh_shape=(parts,))
    found = find_kinds(analysis)
    laid = []
    for kind in found:
        names = [[c.name for c in block.candidates] for block in kind.extracts[0].blocks.blocks]
        combo = [
            choices.index((of_block.index("batch"),))
            for choices, of_block in zip(kind.strategies, names, strict=True)
        ]
        laid.append(kind.layouts(Option(tuple(combo))))
    crossed = find_interfaces(analysis, found).crossings
    kinds_of = [segment.kind for segment in analysis.segments]
    moved = [
        crossing
        for crossing in crossed
        if crossing.boundary.what in ("activation", "cotangent")
        and crossing.boundary.dtype == "float32"
        and crossing.boundary.resharding(
            laid[kinds_of[crossing.source]], laid[kinds_of[crossing.target]]
        )
    ]
    assert crossed
    assert moved == []
