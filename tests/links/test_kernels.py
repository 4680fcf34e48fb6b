"""Fingerprints of kernels: of what XLA printed for H200s (`compile_gpt`), of modules compiled here,
and of both after a change that kernels notice or do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from cfp.links.hlo import COLLECTIVE, read_line
from cfp.links.kernels import fingerprint, read_kernels, with_times
from cfp.links.replay import replay
from cfp.links.schedule import Moment, Schedule, Transfer, read_schedule
from tests.links.test_replay import FREE, Line, schedules
from tests.links.test_schedule import AXES, GPU

TABLE = "u32[8]{0} constant({0, 1, 2, 3, 0, 1, 2, 3})"
KERNELS = [
    at
    for at, line in enumerate(GPU.split("\n"))
    if (it := read_line(line)) and not COLLECTIVE.fullmatch(it.opcode.removesuffix("-done"))
]


def renamed(text: str) -> str:
    """The same module after XLA numbered its instructions and computations otherwise."""
    return re.sub(r"%[\w.\-]+", lambda name: f"{name[0]}.again", text)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("HloModule jit_step", "HloModule jit_other"),
        lambda text: re.sub(r'fingerprint_before_lhs="\w+"', 'fingerprint_before_lhs="0"', text),
        lambda text: re.sub(r"channel_id=(\d+)", r"channel_id=1\1", text),
        lambda text: text.replace("{{0,4},{1,5},{2,6},{3,7}}", "{{0,1},{2,3},{4,5},{6,7}}"),
        lambda text: text.replace("{{0,1,2,3},{4,5,6,7}}", "[2,4]<=[8]"),
        lambda text: re.sub(r"source_target_pairs=\{.*?\}\}", "source_target_pairs={}", text),
        lambda text: text.replace("TRITON_TWO_SHOT", "DEFAULT"),
        lambda text: text.replace(TABLE, TABLE.replace("0, 1, 2, 3, 0, 1", "0, 0, 1, 1, 2, 2")),
        lambda text: re.sub(
            r"(parameter\(\d+\))", r'\1, sharding={replicated}, metadata={op_name="w[\'}\']"}', text
        ),
        renamed,
    ],
)
def test_whom_a_device_talks_to_is_no_part_of_it(change: Callable[[str], str]) -> None:
    changed = change(GPU)
    assert changed != GPU
    assert fingerprint(changed) == fingerprint(GPU)


@settings(deadline=None)
@given(st.data())
def test_every_kernel_counts(data: st.DataObject) -> None:
    """A module that differs in one instruction, anywhere, is another one."""
    lines = GPU.split("\n")
    at = data.draw(st.sampled_from(KERNELS))
    it = read_line(lines[at])
    assert it is not None
    dims = re.search(r"\[(\d+)", it.shape)
    changes = [
        lines[at].replace(f" {it.opcode}(", f" {it.opcode}-other(", 1),
        f"{lines[at]}, new=1",
    ]
    if dims is not None:
        changes.append(lines[at].replace(dims[0], f"[{int(dims[1]) + 1}", 1))
    operand = next(iter(re.findall(r"^%[\w.\-]+", it.rest)), "")
    if operand and len(re.findall(rf"{re.escape(operand)}(?![\w.\-])", GPU)) > 1:
        changes.append(lines[at].replace(f"({operand}", "(%another", 1))
    lines[at] = data.draw(st.sampled_from([one for one in changes if one != lines[at]]))
    assert fingerprint("\n".join(lines)) != fingerprint(GPU)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"is_sync":true', '"is_sync":false'),  # kernels would be in another order
        ("use_global_device_ids=true, to_apply=%add.clone", "to_apply=%add.clone"),
        ('"known_trip_count":{"n":"2"}', '"known_trip_count":{"n":"3"}'),
        ("may-alias", "must-alias"),
        ("lhs_contracting_dims={1}", "lhs_contracting_dims={0}"),
    ],
)
def test_what_else_counts(before: str, after: str) -> None:
    assert before in GPU
    assert fingerprint(GPU.replace(before, after, 1)) != fingerprint(GPU)


def test_a_table_that_others_read_counts() -> None:
    """Its values are left out only where the number of the partition is what it is read by."""
    alone = GPU.replace("%partition-id.4.0), kind=kInput", "%param.5), kind=kInput", 1)
    assert alone != GPU
    other = alone.replace(TABLE, TABLE.replace("0, 1", "1, 1", 1))
    assert fingerprint(alone) != fingerprint(other)


def compiled(
    shape: Sequence[int],
    specs: Sequence[P],
    rows: int = 32,
    change: Callable[[Any], Any] = jnp.tanh,
) -> str:
    """A training step of two products: `specs` are of the two weights and of the batch."""
    names = ("a", "b")[: len(shape)]
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
    *weights, batch = (NamedSharding(mesh, spec) for spec in specs)
    lie = tuple(weights)

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((change(x @ params[0]) @ params[1]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    made = jax.jit(
        step,
        in_shardings=(lie, batch),
        out_shardings=(lie, NamedSharding(mesh, P())),
        donate_argnums=0,
    )
    f32 = jnp.float32
    shaped = jax.ShapeDtypeStruct
    params = (shaped((64, 128), f32), shaped((128, 64), f32))
    return str(made.lower(params, shaped((rows, 64), f32)).compile().as_text())


def test_meshes_that_divide_the_work_alike_have_the_same_kernels() -> None:
    """Four times two ways, along either axis; and another step, or another size, has others."""
    one = compiled((2, 4), (P(None, "b"), P("b"), P("a")))
    same = compiled((4, 2), (P(None, "a"), P("a"), P("b")))
    assert one != same
    assert fingerprint(one) == fingerprint(same)
    left = read_kernels(one, {"a": 2, "b": 4}).schedule
    right = read_kernels(same, {"a": 4, "b": 2}).schedule
    swapped = {"a": "b", "b": "a"}
    assert [(t.kind, t.bytes, t.axes) for t, _ in left.transfers()] == [
        (t.kind, t.bytes, tuple(swapped[axis] for axis in t.axes)) for t, _ in right.transfers()
    ]
    for other in (
        compiled((2, 4), (P(None, "b"), P("b"), P("a")), rows=64),
        compiled((2, 4), (P(None, "a"), P("a"), P("b"))),
        compiled((2, 4), (P(None, "b"), P("b"), P("a")), change=jnp.sin),
    ):
        assert fingerprint(other) != fingerprint(one)


def test_measured_kernels_under_other_groups() -> None:
    """The kernels of a module that was measured, the collectives of the one that is replayed."""
    other = GPU.replace("{{0,4},{1,5},{2,6},{3,7}}", "{{0,1},{2,3},{4,5},{6,7}}")
    names = [read_line(line) for line in GPU.split("\n")]
    times = {
        it.name: 1e-6 * (1 + i % 5) for i, it in enumerate(names) if it and "fusion" in it.name
    }
    measured = read_schedule(GPU, AXES, times)
    bare = read_kernels(other, AXES).schedule
    found = with_times(bare, measured)
    assert found == read_schedule(other, AXES, times)
    assert found != measured


def stripped(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Moments before anything was measured, over another axis."""
    found = []
    for one in moments:
        moves = None if one.transfer is None else replace(one.transfer, axes=("y",))
        loop = None if one.loop is None else replace(one.loop, body=stripped(one.loop.body))
        found.append(Moment(0.0, moves, one.wait, loop))
    return tuple(found)


@given(schedules)
def test_times_are_put_where_they_belong(measured: Schedule) -> None:
    bare = Schedule(stripped(measured.moments))
    found = with_times(bare, measured)
    assert Schedule(stripped(found.moments)) == bare
    assert {t.axes for t, _ in found.transfers()} <= {("y",)}
    for network in (FREE, Line(1.0, 2.0)):
        assert replay(found, network) == replay(measured, network)


@pytest.mark.parametrize(
    "measured",
    [
        (),
        (Moment(1.0, Transfer("all-gather", ("x",), 8)),),
        (Moment(1.0, Transfer("all-reduce", ("x",), 4)),),
        (Moment(1.0, Transfer("all-reduce", ("x",), 8), wait=0),),
        (Moment(1.0, Transfer("all-reduce", ("x",), 8)), Moment(1.0), Moment(1.0)),
        (Moment(1.0, Transfer("all-reduce", ("x",), 8)), Moment(1.0, wait=0)),
    ],
)
def test_times_of_another_program_are_refused(measured: tuple[Moment, ...]) -> None:
    bare = Schedule((Moment(0.0, Transfer("all-reduce", ("y",), 8)),))
    with pytest.raises(ValueError, match="other collectives"):
        with_times(bare, Schedule(measured))
