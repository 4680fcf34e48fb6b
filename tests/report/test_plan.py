"""What `cfp explain` prints, whole, and what the templates make a small GPT send.

`pytest --update-goldens` rewrites tests/golden.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from rich.console import Console

import cfp
import cfp.models
from cfp.devices import make_mesh, reading_mesh
from cfp.memory_size import bytes_text
from cfp.models import config, make_step
from cfp.plan import Collective, Origin, Plan, Predicted
from cfp.plan.choice import segments_text
from cfp.plan.environment import Environment
from cfp.plan.tensor import PlannedTensor
from cfp.report import show_plan
from cfp.report.collectives import collectives_table
from cfp.report.plan import fold_paths
from cfp.report.text import time_text

LAYERS, ACTIVATION = 2, (8, 32, 64)
HERE = Environment("0.1.0", "0.10", "0.10", "cpu", "cpu", 1)
OURS = {path.name for path in Path(cfp.models.__file__).parent.iterdir()}
Golden = Callable[[str, str], None]


@functools.cache
def planned(template: str, shape: tuple[int, ...]) -> Plan:
    """The plan of a small GPT, with its collectives found."""
    step, args = make_step(config("gpt", layers=LAYERS), abstract=True)
    plan: Plan = getattr(cfp.templates, template)(step, *args, mesh=make_mesh(shape))
    plan.collectives()
    return replace(plan, environment=HERE)


def printed(plan: Plan, width: int, collectives: Sequence[Collective] | None) -> str:
    text = io.StringIO()
    show_plan(plan, Console(file=text, width=width), collectives=collectives)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def masked(text: str) -> str:
    """Removes what changes with versions: lines of other packages, what the compiler merged."""
    text = re.sub(r"in all; the compiler merged them into \d+", "in all", text)
    return re.sub(r"(\w+\.py):\d+", lambda m: m[0] if m[1] in OURS else f"{m[1]}:N", text)


@pytest.mark.parametrize(
    ("template", "shape", "name"),
    [
        ("data_parallel", (4,), "explain_gpt_data_parallel.txt"),
        ("megatron", (4,), "explain_gpt_megatron.txt"),
        ("megatron", (2, 2), "explain_gpt_megatron_2x2.txt"),
    ],
)
def test_explanations(template: str, shape: tuple[int, ...], name: str, golden: Golden) -> None:
    plan = planned(template, shape)
    golden(name, masked(printed(plan, 100, plan.collectives())))


def test_a_saved_plan_reads_the_same(tmp_path: Path) -> None:
    plan = planned("megatron", (2, 2))
    path = tmp_path / "plan.json"
    plan.save(path)
    with pytest.warns(cfp.PlanWarning):  # its environment says HERE
        again = cfp.load(path, mesh=reading_mesh({"x": 2, "y": 2}))
    assert printed(again, 100, None) == printed(plan, 100, plan.collectives())


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    plan = planned("megatron", (2, 2))
    text = printed(plan, width, plan.collectives())
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text  # nothing is cut off


# What is sent


def in_step_order(plan: Plan) -> list[tuple[Collective, Origin]]:
    """Every tensor sent, in the order of the step, however the compiler merged and moved them."""
    roles = ["forward", "backward", "update", "unknown"]

    def key(sent: tuple[Collective, Origin]) -> tuple[object, ...]:
        collective, origin = sent
        way = -1 if origin.role == "backward" else 1
        segment = -1 if origin.segment is None else origin.segment
        block = -1 if origin.block is None else origin.block
        place = (roles.index(origin.role), way * segment, way * block)
        return (*place, origin.source, origin.primitive, origin.shape, collective.kind)

    return sorted(((c, o) for c in plan.collectives() for o in c.origins), key=key)


def sent_text(plan: Plan) -> str:
    lines = []
    for collective, origin in in_step_order(plan):
        axes = "part of the mesh" if collective.axes is None else "+".join(collective.axes)
        lines.append(f"{collective.kind} over {axes}: {origin.show()}\n")
    return masked("".join(lines))


@pytest.mark.parametrize("template", ["data_parallel", "megatron"])
def test_collectives(template: str, golden: Golden) -> None:
    golden(f"collectives_gpt_{template}.txt", sent_text(planned(template, (4,))))


def test_data_parallel_sends_gradients_once_and_the_loss() -> None:
    plan = planned("data_parallel", (4,))
    sent = in_step_order(plan)
    assert {collective.kind for collective, _ in sent} == {"all-reduce"}
    assert {collective.times for collective, _ in sent} == {1}
    scalars = [origin for _, origin in sent if not origin.shape]
    assert [origin.role for origin in scalars] == ["forward"]  # the loss
    gradients = [origin for _, origin in sent if origin.shape]
    assert {origin.role for origin in gradients} == {"backward"}
    parameters = [t for t in plan.arguments if t.path.startswith("state.params")]
    sizes = Counter(math.prod(origin.shape) for origin in gradients)
    assert sizes == Counter(math.prod(tensor.shape) for tensor in parameters)
    in_bytes = sum(4 * math.prod(tensor.shape) for tensor in parameters)
    assert sum(collective.bytes for collective in plan.collectives()) == in_bytes + 4


def test_megatron_sends_two_activations_forward_and_two_backward_per_layer() -> None:
    plan = planned("megatron", (4,))
    sent = in_step_order(plan)
    assert {(c.kind, c.axes, c.times) for c, _ in sent} == {("all-reduce", ("x",), 1)}
    embedding, *layers, head = range(len(plan.segments))
    assert len(layers) == LAYERS
    for layer in layers:
        inside = [(o.role, o.shape) for _, o in sent if o.segment == layer]
        assert sorted(inside) == [("backward", ACTIVATION)] * 2 + [("forward", ACTIVATION)] * 2
    # the lookup in a table split by vocabulary
    assert [(o.role, o.shape) for _, o in sent if o.segment == embedding] == [
        ("forward", ACTIVATION)
    ]
    # the loss of logits split by vocabulary: maximum, sum and the label's logit, one per token
    rows = math.prod(ACTIVATION[:2])
    ends = [o for _, o in sent if o.segment == head]
    assert [math.prod(o.shape) for o in ends if o.role == "forward"] == [rows] * 3
    assert [o.shape for o in ends if o.role == "backward"] == [ACTIVATION]
    assert len(sent) == 4 * LAYERS + 1 + 4


# Parts


def test_text() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [time_text(s) for s in (2.5, 0.0125, 3e-5)] == ["2.50 s", "12.50 ms", "30 us"]
    assert segments_text([5, 1, 2, 3]) == "1-3, 5"


def test_indices_that_differ_are_starred() -> None:
    assert fold_paths(["a[0].b['l'][3]['w']", "a[0].b['l'][12]['w']"]) == "a[0].b['l'][*]['w']"
    assert fold_paths(["p['Dense_0']['w']", "p['Dense_1']['w']"]) == "p['Dense_*']['w']"
    assert fold_paths(["p['h']['0']['w']", "p['h']['1']['w']"]) == "p['h']['*']['w']"
    assert fold_paths(["p[2]"]) == "p[2]"


def bare(arguments: tuple[PlannedTensor, ...]) -> Plan:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return Plan("mine", mesh, ("w",), arguments, (), (), (), False, HERE)


def test_arguments_fold_only_where_they_lie_alike() -> None:
    split, held = (0,), True
    text = printed(
        bare(
            (
                PlannedTensor("w[0]", (8, 8), "bfloat16", split),
                PlannedTensor("w[1]", (8, 8), "bfloat16", split),
                PlannedTensor("w[2]", (8, 8), "bfloat16", (None,)),
                PlannedTensor("w[3]", (8, 8), "bfloat16", split, held),
                PlannedTensor("key", (), "key<fry>", (None,)),
            )
        ),
        100,
        None,
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["[*]", "x2", "[8,8]", "P('x')", "[4,8]", "128", "B"] in rows
    assert ["[2]", "[8,8]", "whole", "[8,8]", "128", "B"] in rows
    assert ["[3]", "[8,8]", "P('x')", "held", "[4,8]", "64", "B"] in rows
    assert ["in", "all", "(unsplit:", "520", "B)", "328", "B"] in rows
    assert "Scalars, on every device: key." in text
    assert "held: this sharding is fixed by a pin" in text
    assert "The collectives are not in this plan" in text


def test_head_and_hostile_text() -> None:
    plan = replace(
        bare((PlannedTensor("w\x1b[31m[bold]", (4,), "no such type", (None,)),)),
        name="evil\x1b]0;title\x07",
        notes=("[red]a note[/red]",),
        predicted=Predicted(0.5, 0.4, 0.1, 3 * 2**20),
        sequence=True,
    )
    text = printed(plan, 100, [])
    assert "\x1b" not in text
    assert "evil?]0;title?: a plan for a mesh of x=2." in text
    assert "[red]a note[/red]" in text
    assert "500.00 ms a step (400.00 ms computing, 100.00 ms communicating), 3.0 MiB on" in text
    assert "w?[31m[bold]" in text
    assert "The step sends nothing" in text


def test_collectives_of_unknown_origin_and_part_of_the_mesh() -> None:
    lost = Origin(16, (4,), "f32", "unknown", "", None, None, "unknown")
    table = collectives_table(bare(()), [Collective("collective-permute", 16, None, 3, (lost,))])
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    rows = [line.split() for line in text.getvalue().splitlines()]
    words = "collective-permute part 3 16 B 48 B f32[4] of unknown origin"
    assert words.split() in rows
