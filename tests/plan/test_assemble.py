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
from jax.sharding import Mesh

import cfp
from cfp.analysis import Analysis, analyze
from cfp.layouts.state import State
from cfp.links.collectives import parse_collectives
from cfp.models import config, make_step
from cfp.plan.assemble import assemble_plan
from cfp.profile import Option
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind
from cfp.profile.programs.requests import Request, extract_requests, resharding_request
from cfp.profile.runners.executable import lower
from tests.foreign.plain import PLAIN
from tests.profile.cases import CASES, kinds, mesh, model, random_option
from tests.profile.programs.test_key import MACHINE


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
        for cut, lie in zip(kind.extracts, layouts, strict=True):
            for position, value in enumerate(cut.inputs):
                if value not in analysis.graph.inputs:
                    continue
                at = analysis.graph.inputs.index(value)
                updated = position in cut.feedback.values()
                if updated:
                    assert plan.arguments[at].layout == lie.inputs[position], plan.arguments[at]
                    checked += 1
    assert checked > 3


def _step(*args: Any) -> Any:
    raise AssertionError("nothing runs")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_every_tensor_lies_and_is_read_as_its_segment_was_measured(name: str, seed: int) -> None:
    """This holds in every segment, not in the representatives alone, and in loops too."""
    analysis, found, options, plan = drawn(name, seed, list(State))
    layouts = plan.known("test").layouts
    graph, places = analysis.graph, find_interfaces(analysis, found).places
    checked = 0
    for segment, option in zip(analysis.segments, options, strict=True):
        kind = found[segment.kind]
        where = places[segment.index].equations
        for cut, lie, equations in zip(kind.extracts, kind.layouts(option), where, strict=True):
            for equation, at in zip(cut.graph.equations, equations, strict=True):
                if at is None or analysis.segmentation.home[at][0] != segment.index:
                    continue  # a mask that several segments compute lies as in the first
                there = graph.equations[at]
                for mine, theirs in zip(equation.outputs, there.outputs, strict=True):
                    assert layouts.known[theirs] == lie.known[mine]
                    assert layouts.values.get(theirs) == lie.values.get(mine)
                    checked += 1
                for i, mine in enumerate(equation.inputs):
                    if mine not in lie.known or not cut.graph.values[mine].shape:
                        continue
                    entry = layouts.entries.get((at, i))
                    comes = layouts.known[there.inputs[i]] if entry is None else entry.layout
                    assert comes == lie.known[mine]
                    assert layouts.uses.get((at, i)) == lie.uses.get((equation.index, i))
    assert checked > 100


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


@pytest.mark.parametrize(
    "name", ["gpt", "moe", "bert", "gpt_lookup", "bert_head", "gpt_streams", "llama_streams"]
)
def test_a_step_sends_what_its_segments_and_reshardings_send(name: str) -> None:
    _, _, plan = mixed(name)
    analysis, found, options = choices(name)
    together, apart = sent_bytes(plan), sent_apart(analysis, found, options, plan.mesh)
    assert together == apart
    assert sum(together.values()) > 0


WILD = ("gpt", "bert", "moe", "clip", "conv", "control_flow", "odd_arguments", "mlp", "unet")


@pytest.mark.parametrize("name", WILD)
def test_wild_plans_send_what_was_measured_to_the_byte(name: str) -> None:
    """Splits and training state are drawn for every segment alone, so that most tensors cross."""
    plan, apart = wild(name)
    assert sent_bytes(plan) == apart
    assert sum(apart.values()) > 0


def test_what_two_segments_read_alike_may_be_brought_there_once() -> None:
    """Every layer of a decoder reads what the encoder made: the compiler merges what is equal."""
    plan, apart = wild("encoder_decoder")
    together = sent_bytes(plan)
    assert together.keys() == apart.keys()
    assert sum(together.values()) == pytest.approx(sum(apart.values()), rel=0.05)


def wild(name: str) -> tuple[cfp.Plan, Counter[str]]:
    """A plan by an option at random for every segment, and what its parts send."""
    layers = {"layers": 4} if name == "moe" else {}
    make: Any = PLAIN.get(name) or (
        lambda abstract: make_step(config(name, **layers), abstract=True)
    )
    step, args = make(abstract=True)
    over = mesh((4,))
    analysis = analyze(step, *args, mesh_shape=(4,))
    found = find_kinds(analysis)
    draw = random.Random(name)
    options = [random_option(found[s.kind], draw.randrange(10**6)) for s in analysis.segments]
    interfaces = find_interfaces(analysis, found)
    plan = assemble_plan(step, analysis, over, interfaces, options, name="wild")
    return plan, sent_apart(analysis, found, options, over)


def test_a_file_keeps_how_segments_lie(tmp_path: Path) -> None:
    step, args, plan = mixed("moe")
    assert plan.known("test").layouts.entries
    plan.save(tmp_path / "plan.json")
    again = cfp.load(tmp_path / "plan.json", mesh=mesh((4,))).bind(step, *args)
    assert again.known("test").layouts == plan.known("test").layouts
    document = json.loads((tmp_path / "plan.json").read_text())
    assert {entry["state"] for entry in document["segments"]} == {"block", "zero1"}
    document["segments"][0]["state"] = "zero4"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(cfp.CfpError, match='`state` is "zero4", where one of'):
        cfp.load(tmp_path / "plan.json", mesh=mesh((4,)))


def sent_bytes(plan: cfp.Plan) -> Counter[str]:
    """Bytes that a step sends, by kind of collective: the compiler merges some of them."""
    total: Counter[str] = Counter()
    for one in plan.collectives():
        total[one.kind] += one.bytes * one.times
    return total


def sent_apart(
    analysis: Analysis, found: Sequence[Kind], options: Sequence[Option], over: Mesh
) -> Counter[str]:
    """The same of the programs of its segments, and of what crosses between them."""
    layouts = [found[s.kind].layouts(o) for s, o in zip(analysis.segments, options, strict=True)]
    requests: list[tuple[Request, int]] = []
    for s, option, lie in zip(analysis.segments, options, layouts, strict=True):
        kind = found[s.kind]
        programs = extract_requests(MACHINE, over, kind, option, lie)
        requests += [
            (r, cut.times // cut.iterations) for r, cut in zip(programs, kind.extracts, strict=True)
        ]
    for crossing in find_interfaces(analysis, found).crossings:
        moved = crossing.boundary.resharding(layouts[crossing.source], layouts[crossing.target])
        if moved is not None:
            requests.append((resharding_request(MACHINE, over, moved), crossing.times))
    total: Counter[str] = Counter()
    known: dict[str, Counter[str]] = {}
    for request, times in requests:
        if request.key not in known:
            text = lower(request.make(), over)[0].compile().as_text() or ""
            one = known[request.key] = Counter()
            for each in parse_collectives(text, over.size):
                one[each.kind] += each.bytes * each.times
        for name, count in known[request.key].items():
            total[name] += count * times
    return total


def named(kind: Kind, name: str) -> Option:
    combos = itertools.product(*(range(len(choices)) for choices in kind.choices))
    every = (Option(*one) for one in itertools.product(combos, State))
    return next(option for option in every if kind.show(option) == name)


LAYER = "output features, input features, output features, input features"
TWICE = ", ".join(f"{name}+{name}" for name in LAYER.split(", "))
BOTH = "batch+output features, batch+input features, batch+output features, batch+input features"
STREAM = "input features (split stream)"
MIXED = {
    "gpt": ((4,), ("output features", LAYER, "output features")),
    "moe": (
        (4,),
        (
            "output features (zero1)",
            *["output features, input features"] * 2,
            "batch, batch, groups, groups, batch, batch",
        ),
    ),
    "bert": (
        (2, 2),
        (
            "output features+output features (zero1)",
            TWICE,
            "input features+output features, output features+output features",
        ),
    ),
    "gpt_streams": (
        (4,),
        ("table rows (split stream)", LAYER.replace("input features", STREAM), "output features"),
    ),
    "llama_streams": (
        (2, 2),
        (
            "batch+table rows (split stream)",
            BOTH.replace("input features", STREAM),
            "batch+output features",
        ),
    ),
    "gpt_lookup": ((2, 2), ("table rows+output features", BOTH, "batch+output features")),
    "bert_head": (
        (2, 2),
        ("batch+output features", BOTH, "output features+batch, output features+batch"),
    ),
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
    interfaces = find_interfaces(analysis, found)
    return step, args, assemble_plan(step, analysis, over, interfaces, chosen, name="mixed")


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
    interfaces = find_interfaces(analysis, found)
    plan = assemble_plan(_step, analysis, mesh((4,)), interfaces, options, name="random")
    return analysis, found, options, plan
