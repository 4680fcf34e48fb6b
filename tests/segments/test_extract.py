"""Programs cut out as graphs of their own: well formed, the same computation, the same anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.profile.programs.key import program_digest
from cfp.segments.extract import Extract, extract_program
from cfp.segments.fill import example_inputs
from cfp.segments.program import Cutter, Program
from cfp.trace import Role
from cfp.trace.evaluate import rebuild
from tests.profile.cases import CASES, Untouched, accumulating, foreign, kinds, model


def programs(analysis: Analysis) -> Iterator[tuple[Program, Extract]]:
    """Every distinct segment's programs, and its two in a row, with their extracts."""
    cutter = Cutter(analysis.graph, analysis.grouping, analysis.segmentation)
    for distinct, kind in zip(analysis.distinct_segments, kinds(analysis), strict=True):
        yield from zip(cutter.programs(distinct.representative), kind.extracts, strict=True)
        if kind.chained is not None:
            first = distinct.representative
            if first + 1 not in distinct.occurrences:
                first = max(i for i in distinct.occurrences if i + 1 in distinct.occurrences)
            (both,) = cutter.programs(first, first + 1)
            yield both, kind.chained


@pytest.mark.parametrize("name", CASES)
def test_a_cut_computes_what_its_program_does(name: str) -> None:
    """The same jaxpr, hence the same bits."""
    analysis = CASES[name]()
    graph = analysis.graph
    count = 0
    for program, extract in programs(analysis):
        inputs = example_inputs(graph, program.inputs)
        before = jax.make_jaxpr(lambda *x, p=program: p.run(graph, x))(*inputs)
        after = jax.make_jaxpr(lambda *x, g=extract.graph: rebuild(g, x, Untouched()))(*inputs)
        assert str(after) == str(before)
        assert len(before.eqns) > 0.9 * len(program.equations)  # JAX drops what does nothing
        count += 1
    assert count >= len(analysis.distinct_segments)


@pytest.mark.parametrize("analysis", [lambda: model("gpt"), lambda: foreign("mlp")])
def test_a_cut_gives_the_numbers_its_program_does(analysis: object) -> None:
    found: Analysis = analysis()  # type: ignore[operator]
    program, extract = list(programs(found))[-1]
    inputs = example_inputs(found.graph, program.inputs)
    before = jax.jit(lambda *x: program.run(found.graph, x))(*inputs)
    after = jax.jit(lambda *x: rebuild(extract.graph, x, Untouched()))(*inputs)
    again = example_inputs(extract.graph, extract.graph.inputs)
    for a, b, c, d in zip(before, after, inputs, again, strict=False):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(c, d, err_msg="fills are the same inside an extract")


@pytest.mark.parametrize("name", CASES)
def test_cuts_are_well_formed(name: str) -> None:
    analysis = CASES[name]()
    for program, extract in programs(analysis):
        check_graph(extract)
        step = analysis.graph
        assert extract.inputs == program.inputs
        assert extract.outputs == program.outputs
        assert extract.times == program.times
        for value, there in zip(extract.graph.values, extract.values, strict=True):
            assert value.shape == step.values[there].shape
            assert value.dtype == step.values[there].dtype
        assert [e.op for e in extract.graph.equations] == [
            step.equations[e].op for e in program.equations
        ]
        for block, there in zip(extract.blocks.blocks, extract.blocks_of, strict=True):
            old = analysis.blocks[there]
            assert [c.name for c in block.candidates] == [c.name for c in old.candidates]
            assert block.strategies(extract.blocks.mesh_shape) == old.strategies(
                analysis.mesh_shape
            )


def check_graph(extract: Extract) -> None:
    graph = extract.graph
    made: dict[int, int] = {}
    for position, equation in enumerate(graph.equations):
        assert equation.index == position
        assert equation.loop is None
        for value in equation.inputs:
            known = value in made or value in graph.inputs or value in graph.constants
            assert known, f"{graph.describe(value)} is read before it is made"
            assert position in graph.readers[value]
        for value in equation.outputs:
            assert value not in made
            made[value] = position
    for value in graph.values:
        assert graph.values[value.index] is value
        assert value.producer == made.get(value.index)
        readers = graph.readers[value.index]
        assert list(readers) == sorted(set(readers))
        assert all(value.index in graph.equations[r].inputs for r in readers)
    assert len(set(graph.inputs)) == len(graph.inputs)
    assert set(made).isdisjoint(graph.inputs)
    assert set(graph.outputs) <= set(made)
    assert graph.returned == set(graph.outputs)
    assert not set(graph.constants) & set(graph.inputs)
    arguments = list(extract.feedback.values())
    assert len(set(arguments)) == len(arguments), "an argument is replaced once"
    for result, argument in extract.feedback.items():
        new, old = graph.values[graph.outputs[result]], graph.values[graph.inputs[argument]]
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    check_grouping(extract)


def check_grouping(extract: Extract) -> None:
    """What of `check_blocks` holds for a part of a step."""
    graph, blocks = extract.graph, extract.blocks
    for index, block in enumerate(blocks.blocks):
        assert block.index == index
        assert block.seeds
        for equation in (*block.members, *block.prologue):
            assert blocks.home[equation] == index
            assert graph.equations[equation].role is Role.FORWARD
        for equation in block.backward:
            assert graph.equations[equation].role is Role.BACKWARD
        for candidate in block.candidates:
            assert candidate.seeds
            assert set(candidate.seeds) <= set(block.seeds)
        for value, dims in block.splits.items():
            for candidate, dim in zip(block.candidates, dims, strict=True):
                if dim is not None:
                    assert candidate.allows(2) <= (graph.values[value].shape[dim] % 2 == 0)
    for backward, forward in blocks.matched.items():
        assert graph.equations[backward].role is Role.BACKWARD
        assert graph.equations[forward].role is Role.FORWARD
    assert blocks.parameters <= set(graph.inputs)


@pytest.mark.parametrize("name", ["gpt", "bert", "llama", "moe"])
def test_all_contractions_of_a_cut_are_accounted_for(name: str) -> None:
    """A contraction that no block asks for would be left to the compiler."""
    for _, extract in programs(CASES[name]()):
        known = {seed for block in extract.blocks.blocks for seed in block.seeds}
        known |= {
            *extract.blocks.home,
            *extract.blocks.matched,
            *extract.blocks.recomputed.equations,
        }
        for equation in extract.graph.equations:
            assert equation.primitive != "dot_general" or equation.index in known


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("gpt", (2, 4, 7)),
        ("bert", (2, 7)),
        ("llama", (2, 7)),
    ],
)
def test_the_depth_of_a_model_changes_no_program(name: str, depths: tuple[int, ...]) -> None:
    found = []
    for layers in depths:
        extracts = [kind.extracts for kind in kinds(model(name, layers=layers))]
        found.append([program_digest(extract) for (extract,) in extracts])
    assert all(digests == found[0] for digests in found)


def test_the_depth_of_a_moe_changes_only_its_experts() -> None:
    """Their auxiliary loss is a mean over layers: a constant of the program is the depth."""
    found = []
    for layers in (4, 6):
        found.append(
            [program_digest(kind.extracts[0]) for kind in kinds(model("moe", layers=layers))]
        )
    assert [a == b for a, b in zip(*found, strict=True)] == [True, True, False, True]


def test_the_length_of_a_loop_changes_no_iteration() -> None:
    found = []
    for layers in (2, 4, 7):
        ends_and_body = kinds(model("llama", layers=layers, scan=True, checkpoint=True))
        assert [len(kind.extracts) for kind in ends_and_body] == [1, 2, 1]
        assert ends_and_body[1].extracts[0].times == layers
        found.append([program_digest(kind.extracts[0]) for kind in ends_and_body])
    assert found[0] == found[1] == found[2]


def test_all_inner_occurrences_are_one_program() -> None:
    analysis = model("gpt", layers=7)
    cutter = Cutter(analysis.graph, analysis.grouping, analysis.segmentation)
    feedback = find_feedback(analysis.graph, analysis.grouping.parameters)
    digests = set()
    for segment in analysis.distinct_segments[1].occurrences:
        (program,) = cutter.programs(segment)
        digests.add(
            program_digest(extract_program(analysis.graph, analysis.grouping, program, feedback))
        )
    assert len(digests) == 1


def test_two_in_a_row_are_chained_where_the_kind_follows_itself() -> None:
    one, two = kinds(model("gpt", layers=4))[1], kinds(model("moe", layers=4))[1]
    assert one.chained is not None
    assert two.chained is None, "dense and expert layers take turns"
    assert len(one.chained.graph.equations) > 1.8 * len(one.extracts[0].graph.equations)
    assert len(one.chained.blocks.blocks) == 2 * len(one.extracts[0].blocks.blocks)


def test_recomputation_stays_with_its_layer() -> None:
    """Under `checkpoint` a layer's backward part is the layer's, dropout or not."""
    for dropout in (0.0, 0.1):
        analysis = model("gpt", layers=4, checkpoint=True, dropout=dropout)
        embed, layer, _ = kinds(analysis)
        plain = kinds(model("gpt", layers=4, dropout=dropout))[0]
        assert len(embed.extracts[0].graph.equations) < 1.2 * len(plain.extracts[0].graph.equations)
        paths = [p for p in layer.extracts[0].graph.input_paths if p.startswith("state.params")]
        layers = {path.split("[")[2] for path in paths if "['layers']" in path}
        assert len(layers) == 1, f"reads parameters of layers {sorted(layers)}"


def test_what_micro_batches_carry_from_one_to_the_next() -> None:
    """Sums of gradients, and the loss; the layers' loop inside carries activations and cotangents,
    and keeps what both its iterations need for the backward pass."""
    embedding, layer, head = kinds(accumulating())
    for kind, sums in ((embedding, 1), (head, 1)):
        once = kind.extracts[0].iteration
        assert once is not None
        assert len(once.sums) == sums
        assert once.kept == 1
    inner, outer = layer.extracts[0].iteration, layer.extracts[1].iteration
    assert inner is not None
    assert outer is not None
    assert (len(inner.carries), len(inner.sums), inner.kept) == (2, 0, 2)
    assert (len(outer.carries), len(outer.sums), outer.kept) == (4, 4, 1)
    assert layer.extracts[2].iteration is None


def test_every_argument_of_an_iteration_is_carried_or_anew_or_the_same_for_all() -> None:
    graph = accumulating().graph
    head = kinds(accumulating())[2].extracts[0]
    assert head.iteration is not None
    words = [graph.describe(value) for value in head.inputs]
    same = set(range(len(words))) - head.iteration.varies - head.iteration.carries.keys()
    assert {words[i] for i in same} == {"params['head']", "opt_state['scale']"}
    assert not head.iteration.varies & head.iteration.carries.keys()


def test_sums_and_states_are_where_their_parameters_are() -> None:
    """They are there, too, where a step whose gradients are infinite anywhere leaves its state as
    it was."""
    analysis = accumulating()
    for segment, name in zip(analysis.segments, ("embed", "layers", "head"), strict=True):
        extracts = kinds(analysis)[segment.kind].extracts
        own = [p for extract in extracts for p in extract.graph.input_paths if f"'{name}'" in p]
        fed_back = [extracts[-1].graph.input_paths[i] for i in extracts[-1].feedback.values()]
        assert sorted(fed_back) == sorted({*own})
        last = extracts[-1].graph
        gradients = [
            last.values[v].shape
            for v, p in zip(last.inputs, last.input_paths, strict=True)
            if "loop_exit" in p
        ]
        shapes = [last.values[last.inputs[i]].shape for i in extracts[-1].feedback.values()]
        assert sorted(shape for shape in gradients if shape) == sorted(shapes)[::3]
