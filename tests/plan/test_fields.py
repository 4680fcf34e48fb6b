"""Whatever a plan file holds, it loads or is refused in one sentence, soon and in little memory."""

from __future__ import annotations

import copy
import io
import itertools
import json
import os
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import cfp
from cfp import templates
from cfp.errors import CfpError
from cfp.plan.evidence import Spent
from cfp.plan.fields import MAX_TEXT
from cfp.plan.file import plan_to_json
from cfp.plan.measured_kinds import MeasuredBlock, MeasuredKind, MeasuredOption
from cfp.plan.target import Target
from cfp.profile.measure.sent import Sent
from cfp.report import render_page, show_plan
from tests.report.test_evidence import planned

from .steps import mesh_of, mlp_args, mlp_step

SHAPE = (2, 2)


@cache
def documents() -> tuple[dict[str, Any], ...]:
    """Plans of every kind: by segments, by tensors, and one that was planned."""
    made = [
        make(mlp_step, *mlp_args(), mesh=mesh_of(*SHAPE))
        for make in (templates.megatron, templates.alpa)
    ]
    made[0].collectives()
    options = (("size", "tiny"), ("layers", 2), ("dropout", 0.1), ("scan", False))
    made[0] = replace(made[0], target=Target("gpt", options, ("layers",)))
    return (*map(plan_to_json, made), plan_to_json(with_kinds(planned())))


def with_kinds(plan: cfp.Plan) -> cfp.Plan:
    """The plan with every segment as a kind of its own, which was measured in one way."""
    evidence = plan.evidence
    assert evidence is not None
    sent = (Sent("all-reduce", (0,), "a.py:1", 1.0, 8.0),)
    kinds = []
    for at, segment in enumerate(plan.segments):
        combo = (0,) * len(segment.blocks)
        splits = evidence.segments[at].splits
        option = MeasuredOption(splits, combo, "block", 1.0, 0.1, 0.5, 0.5, 64, False, sent)
        block = MeasuredBlock(("product",), ("batch",), (4,), ("sum",), ("batch", "groups"), 1.0)
        blocks = (block,) * len(segment.blocks)
        kinds.append(MeasuredKind("f", (at,), 1, 2, 1, True, blocks, (option,), 0))
    spent = (Spent("searching", 1.0),)
    steps = tuple(replace(s, sent=sent, compute_s=0.5, exposed_s=0.5) for s in evidence.confirmed)
    more = replace(evidence, kinds=tuple(kinds), spent=spent, flops=1e9, confirmed=steps)
    return replace(plan, evidence=more)


def load(document: Any, folder: Path) -> cfp.Plan:
    text = document if isinstance(document, str) else json.dumps(document)
    path = folder / "plan.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    axes = document.get("mesh") if isinstance(document, dict) else None
    shape = (4,) if axes == {"x": 4} else SHAPE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cfp.PlanWarning)
        return cfp.load(path, mesh=mesh_of(*shape))


def with_field(name: str, value: str) -> str:
    """The first document as text, with a field's JSON replaced."""
    document = {**documents()[0], name: "REPLACED"}
    return json.dumps(document).replace('"REPLACED"', value)


HOSTILE = {
    "a number of 400 digits": (with_field, "version", "1" + "0" * 400),
    "a number of 5000 digits": (with_field, "version", "9" * 5000),
    "a size beyond 64 bits": (with_field, "mesh", f'{{"x": {2**63}}}'),
    "a float beyond all": (with_field, "predicted", '{"time_s": 1e999}'),
    "NaN": (with_field, "predicted", '{"time_s": NaN}'),
    "Infinity": (with_field, "predicted", '{"time_s": -Infinity}'),
    "a name twice": (with_field, "mesh", '{"x": 2, "y": 2, "x": 3}'),
    "a surrogate": (with_field, "name", r'"\ud800"'),
    "a surrogate in a key": (with_field, "arguments", r'{"\udfff": {}}'),
    "a surrogate in a dtype": (
        with_field,
        "arguments",
        r'{"w": {"shape": [], "dtype": "float\udc0032", "spec": []}}',
    ),
    "no dtype": (with_field, "results", '{"w": {"shape": [], "dtype": "(2,)f8", "spec": []}}'),
    "65 axes": (with_field, "mesh", json.dumps({f"a{i}": 1 for i in range(65)})),
    "a target that is no name": (
        with_field,
        "target",
        '{"name": "rm -rf:x", "options": {}, "given": []}',
    ),
    "a list for an option": (
        with_field,
        "target",
        '{"name": "gpt", "options": {"layers": [2]}, "given": []}',
    ),
    "a number for a list of texts": (with_field, "argument_names", "[1]"),
    "a text for a flag": (with_field, "sequence", '"no"'),
    "a text for an object": (with_field, "environment", '"here"'),
    "a flag for a list of objects": (with_field, "segments", "true"),
}


def test_what_is_refused(golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in one sentence that says what is wrong and what is expected."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for title, (make, *parts) in HOSTILE.items():
        with pytest.raises(CfpError) as refused:
            load(make(*parts), Path())
        lines.append(f"{title}\n    {refused.value}\n")
        assert "\n" not in str(refused.value)
        assert "something else" not in str(refused.value)
    golden("refused_plans.txt", "".join(lines))


def test_a_long_note_is_refused_and_not_printed(tmp_path: Path) -> None:
    with pytest.raises(CfpError, match=f"where a text of at most {MAX_TEXT} characters") as refused:
        load(with_field("notes", json.dumps(["n" * (MAX_TEXT + 1)])), tmp_path)
    assert len(str(refused.value)) < 400


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "zero.json", Path("/dev/zero")):
        with pytest.raises(CfpError, match="a device or a pipe, not a plain file"):
            cfp.load(path, mesh=mesh_of(*SHAPE))
    with pytest.raises(CfpError, match="Is a directory"):
        cfp.load(tmp_path, mesh=mesh_of(*SHAPE))


NASTY = (
    *(None, True, False, -1, 0, 1, 2, 63, 2**31, 2**62, 2**63, 10**400, 0.0, -0.5, 1e308, 5e-324),
    *("", "x", "y", "rows", "\ud800", "\x1b[2J", "float32", "params['up']", "a" * 70),
    *([], {}, [[]], [{}], [None], [0], ["x"], ["x", "y"], [["x", "y"]], {"x": 2}, {"": {}}),
)


@st.composite
def place(draw: st.DrawFn, node: Any) -> list[tuple[Any, Any]]:
    """A way into a document, key by key with what holds it: rare fields as likely as common ones,
    and inner ones likelier than outer ones."""
    way: list[tuple[Any, Any]] = []
    while isinstance(node, (dict, list)) and node and (not way or draw(st.integers(0, 4))):
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        way.append((node, key))
        node = node[key]
    return way


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid plan with a few fields replaced, removed, doubled or moved, or its text cut."""
    document = copy.deepcopy(draw(st.sampled_from(documents())))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(place(document))[-1]
        change = draw(st.sampled_from(["replace", "replace", "remove", "double", "move"]))
        if change == "remove" and len(document) > 1:
            del holder[key]
        elif change == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif change == "move":
            source, name = draw(place(document))[-1]
            holder[key] = copy.deepcopy(source[name])
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(NASTY)))
    if draw(st.integers(0, 9)):
        return document
    text = json.dumps(document)
    cut = draw(st.integers(0, len(text)))
    return text[:cut] + draw(st.text(max_size=3)) + text[cut + draw(st.integers(0, 3)) :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(document=mutated())
def test_a_changed_plan_loads_or_is_refused(folder: Path, document: Any) -> None:
    """What loads can be shown, saved again, and met with a step."""
    try:
        plan = load(document, folder)
        show_plan(plan, Console(file=io.StringIO(), width=80))
        if len(str(document)) % 4 == 0:  # a page takes longer than all else here
            render_page(plan)
        plan.save(folder / "again.json")
        assert repr(plan).startswith("<Plan ")
        plan.bind(mlp_step, *mlp_args())
    except CfpError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda kind: kind.update(segments=[99]), "`kinds` are of other segments"),
        (lambda kind: kind.update(blocks=[], options=[]), "`kinds` are of other segments"),
        (lambda kind: kind["options"][0]["sent"][0].update(axes=[7]), "`sent` names mesh axes"),
        (lambda kind: kind["blocks"][0].update(seeds=[]), "`seeds` is"),
    ],
)
def test_evidence_of_another_plan_is_refused(folder: Path, change: Any, said: str) -> None:
    document = copy.deepcopy(documents()[2])
    change(document["evidence"]["kinds"][0])
    with pytest.raises(CfpError, match=said):
        load(document, folder)


def test_no_number_of_the_evidence_is_too_strange(folder: Path) -> None:
    """Every kind of number in turn: random changes hit one of them too rarely."""

    def numbers(node: Any) -> list[tuple[Any, Any]]:
        keys = sorted(node) if isinstance(node, dict) else range(min(len(node), 1))
        inner = [
            found
            for key in keys
            if isinstance(node[key], (dict, list))
            for found in numbers(node[key])
        ]
        return inner + [(node, key) for key in keys if isinstance(node[key], (int, float))]

    document = copy.deepcopy(documents()[2])
    shown = 0
    paged = itertools.cycle((True, False, False))  # a page takes longer than all else here
    for holder, key in (*numbers(document["evidence"]), *numbers(document["predicted"])):
        before = holder[key]
        for strange in (0, -1, 5e-324, 1e18):
            holder[key] = strange
            try:
                plan = load(document, folder)
            except CfpError:
                continue
            show_plan(plan, Console(file=io.StringIO(), width=80))
            if next(paged):
                render_page(plan)
            shown += 1
        holder[key] = before
    assert shown > 15
