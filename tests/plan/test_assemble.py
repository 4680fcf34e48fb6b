"""A plan made of options lies as the options were measured."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cfp
from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.plan.assemble import assemble_plan, strategies_of_options
from cfp.plan.build import build_plan
from cfp.plan.hlo import parse_collectives
from cfp.profile import Option
from cfp.profile.boundary import find_crossings
from cfp.profile.executable import lower
from cfp.profile.kinds import Kind
from cfp.profile.requests import cut_requests, resharding_request
from tests.profiling.cases import CASES, kinds, mesh, model, random_option
from tests.profiling.test_key import MACHINE


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_every_argument_lies_as_its_home_segment_was_measured(name: str, seed: int) -> None:
    analysis, found, options, plan = drawn(name, seed, list(State))
    checked = 0
    for segment, option in zip(analysis.segments, options, strict=True):
        kind = found[segment.kind]
        if segment.index != analysis.distinct_segments[segment.kind].representative:
            continue  # whose positions are the kind's
        layouts = kind.layouts(option)
        for cut, lie in zip(kind.cuts, layouts, strict=True):
            for position, value in enumerate(cut.inputs):
                if value not in analysis.graph.inputs:
                    continue
                at = analysis.graph.inputs.index(value)
                updated = position in cut.goes_round.values()
                if updated:
                    assert plan.arguments[at].layout == lie.inputs[position], plan.arguments[at]
                    checked += 1
    assert checked > 3


def _step(*args: Any) -> Any:
    raise AssertionError("nothing runs")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(5))
def test_inside_every_tensor_lies_as_its_segment_was_measured(name: str, seed: int) -> None:
    """What was predicted is what runs: all of it where there are no loops and nothing is shared."""
    analysis, found, options, plan = drawn(name, seed, [State.BLOCK])
    known = plan.known("test").layouts.known
    again = build_plan(
        _step,
        analysis,
        mesh((4,)),
        strategies_of_options(analysis, found, options),
        name="again",
        held={i: tensor.layout for i, tensor in enumerate(plan.arguments) if tensor.held},
        entries={(e.equation, e.operand or 0): e.layout for e in plan.entries},
    )
    assert again.known("test").layouts == plan.known("test").layouts, "what is kept says it all"
    same = total = 0
    for segment, option in zip(analysis.segments, options, strict=True):
        kind = found[segment.kind]
        representative = analysis.distinct_segments[segment.kind].representative
        if len(kind.cuts) > 1 or segment.index != representative:
            continue
        (cut,), (lie,) = kind.cuts, kind.layouts(option)
        for value, layout in lie.known.items():
            if cut.graph.values[value].producer is not None and cut.graph.values[value].shape:
                total += 1
                same += known[cut.values[value]] == layout
    if name == "gpt":
        assert same == total > 100
    # what several segments share lies in one way, and what leaves for a loop as that wants it
    assert same >= 0.9 * total


def test_how_a_lookup_lies_does_not_spread_over_the_layers() -> None:
    """One split by columns is gathered once; layers that want it whole stay as they are."""
    _, _, plan = mixed()
    kinds_of = [one.kind for one in plan.collectives() if one.bytes >= 8 * 32 * 64 * 4]
    assert kinds_of.count("all-gather") == 1
    assert kinds_of.count("all-reduce") == 4 * 2 + 1


def test_how_tables_lie_does_not_split_the_norms_above_them() -> None:
    """The position table's gradient is the sum of a cotangent, which nobody wants split for it."""
    _, _, plan = mixed("moe")
    small = [one for one in plan.collectives() if one.bytes < 8 * 32 * 64 * 4]
    assert [one.show() for one in small if {o.segment for o in one.origins} & {1, 2}] == []


def test_not_even_where_the_first_layer_is_another_and_masks_are_drawn() -> None:
    """BERT's first layer has more arguments than the others, and every layer a norm and a dropout
    whose tensors nobody asks for."""
    _, _, plan = mixed("bert")
    large = [one for one in plan.collectives() if one.bytes >= 8 * 32 * 64 * 4]
    layers = [one.kind for one in large if {o.segment for o in one.origins} & {1, 2}]
    assert layers.count("all-gather") == 2  # how the embedding is read, and the head's cotangent
    assert layers.count("all-reduce") == len(layers) - 2 == 4 * 2


@pytest.mark.parametrize("name", ["gpt", "moe", "bert", "gpt_lookup", "bert_head"])
def test_a_step_sends_what_its_segments_and_reshardings_send(name: str) -> None:
    """What a segment reads several times otherwise than it was made is brought there once, and an
    update gathers nothing. Sums are left out: alone, a segment has those of both passes merged."""
    _, _, plan = mixed(name)
    analysis, found, options = choices(name)
    layouts = [found[s.kind].layouts(o) for s, o in zip(analysis.segments, options, strict=True)]
    requests = [
        request
        for s, option, lie in zip(analysis.segments, options, layouts, strict=True)
        for request in cut_requests(MACHINE, plan.mesh, found[s.kind], option, lie)
    ]
    for crossing in find_crossings(analysis, found):
        moved = crossing.boundary.resharding(layouts[crossing.source], layouts[crossing.target])
        if moved is not None:
            requests += [resharding_request(MACHINE, plan.mesh, moved)] * crossing.times
    apart: Counter[str] = Counter()
    for request in requests:
        text = lower(request.make(), plan.mesh)[0].compile().as_text()
        apart.update(one.kind for one in parse_collectives(text or "", plan.mesh.size))
    together = Counter(one.kind for one in plan.collectives())
    del apart["all-reduce"], together["all-reduce"]
    assert together == apart


def test_a_file_keeps_how_segments_read(tmp_path: Path) -> None:
    step, args, plan = mixed()
    assert plan.entries
    plan.save(tmp_path / "plan.json")
    again = cfp.load(tmp_path / "plan.json", mesh=mesh((4,))).bind(step, *args)
    assert again.known("test").layouts == plan.known("test").layouts
    document = json.loads((tmp_path / "plan.json").read_text())
    document["entries"][0]["primitive"] = "cos"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(cfp.CfpError, match="another step: its equation"):
        cfp.load(tmp_path / "plan.json", mesh=mesh((4,))).bind(step, *args)


def named(kind: Kind, name: str) -> Option:
    combos = itertools.product(*(range(len(choices)) for choices in kind.strategies))
    every = (Option(*one) for one in itertools.product(combos, State))
    return next(option for option in every if kind.show(option) == name)


LAYER = "columns, contracted, columns, contracted"
TWICE = "columns+columns, contracted+contracted, columns+columns, contracted+contracted"
BOTH = "rows+columns, rows+contracted, rows+columns, rows+contracted"
MIXED = {
    "gpt": ((4,), ("columns", LAYER, "columns")),
    "moe": (
        (4,),
        ("columns (zero1)", *["columns, contracted"] * 2, "rows, batch, batch, batch, batch, rows"),
    ),
    "bert": ((2, 2), ("columns+columns (zero1)", TWICE, "contracted+columns, columns+columns")),
    "gpt_lookup": ((2, 2), ("contracted+columns", BOTH, "rows+columns")),
    "bert_head": ((2, 2), ("rows+columns", BOTH, "columns+rows, columns+rows")),
}


def choices(name: str) -> tuple[Analysis, tuple[Kind, ...], list[Option]]:
    mesh_shape, names = MIXED[name]
    analysis = model(name.partition("_")[0], mesh_shape)
    found = kinds(analysis)
    return analysis, found, [named(found[s.kind], names[s.kind]) for s in analysis.segments]


def mixed(name: str = "gpt") -> tuple[Any, tuple[Any, ...], cfp.Plan]:
    """A model split as Megatron does, but for its embedding, BERT's head and the MoE's experts."""
    step, args = make_step(config(name.partition("_")[0]), abstract=True)
    analysis, found, chosen = choices(name)
    over = mesh(MIXED[name][0])
    return step, args, assemble_plan(step, analysis, over, found, chosen, name="mixed")


def drawn(
    name: str, seed: int, states: Sequence[State]
) -> tuple[Analysis, tuple[Kind, ...], list[Option], cfp.Plan]:
    """A plan by an option at random for every segment."""
    analysis = CASES[name]()
    found = kinds(analysis)
    draw = random.Random(seed)
    options = [
        random_option(found[s.kind], draw.randrange(10**6), draw.choice(states))
        for s in analysis.segments
    ]
    plan = assemble_plan(_step, analysis, mesh((4,)), found, options, name="random")
    return analysis, found, options, plan
