"""Schedules of compiled modules: a GPU's, as XLA prints it (`compile_gpt` says how it was made), a
CPU's compiled here, and forms that neither has."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cfp.links.collectives import parse_collectives
from cfp.links.replay import replay
from cfp.links.schedule import (
    Moment,
    NotReplayable,
    Schedule,
    ScheduledLoop,
    Transfer,
    read_schedule,
)
from tests.links.test_replay import FREE, Line

AXES = {"data": 2, "model": 4}
GPU = (Path(__file__).parent / "gpt_h200.hlo").read_text()
FUSION = re.compile(r"^  (?:ROOT )?%([\w.\-]+) = .* fusion\(", re.MULTILINE)


def in_the_schedule(text: str) -> dict[str, int]:
    """How often every fusion of the step runs: those in the bodies of the two loops twice."""
    parts = re.split(r"^(?=%|ENTRY)", text, flags=re.MULTILINE)
    bodies = set(re.findall(r"body=%([\w.\-]+)", text))
    found = {}
    for part in parts:
        looped = part[1:].split(" ")[0] in bodies
        if looped or part.startswith("ENTRY"):
            found.update(dict.fromkeys(FUSION.findall(part), 2 if looped else 1))
    return found


def test_a_gpus_module() -> None:
    """Every collective is there, as often as it runs; kernels keep their recorded time."""
    times = in_the_schedule(GPU)
    assert len(times) > 80
    kernels = {name: 1e-6 * (1 + i % 7) for i, name in enumerate(times)}
    schedule = read_schedule(GPU, AXES, kernels)
    found = sorted((t.kind, t.bytes, times) for t, times in schedule.transfers())
    listed = [(c.kind, c.bytes, c.times) for c in parse_collectives(GPU, 8)]
    assert found == sorted(listed)
    assert {kind for kind, _, _ in found} == {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-permute",
        "reduce-scatter",
    }
    assert schedule.unplaced_s == 0
    assert replay(schedule, FREE).time_s == pytest.approx(sum(kernels.values()))
    slow = replay(schedule, Line(1e-6, 1e-9))
    assert 0 < slow.exposed_s < slow.communication_s, "some of it hides behind kernels"


def test_a_start_that_is_synchronous_waits_for_itself() -> None:
    schedule = read_schedule(GPU, AXES)
    starts = [(i, one) for i, one in enumerate(schedule.moments) if one.transfer]
    waiting = [one for i, one in starts if one.wait == i]
    assert waiting
    assert len(waiting) < len(starts)
    (first, *_) = GPU.split("ENTRY")[1:]
    assert len(waiting) == first.count('"is_sync":true')


def test_kernels_that_are_nowhere_in_the_text_are_kept() -> None:
    name = next(iter(in_the_schedule(GPU)))
    schedule = read_schedule(GPU, AXES, {name: 1.0, "a kernel of a library": 2.0})
    assert schedule.unplaced_s == 2.0
    assert replay(schedule, FREE).time_s == 3.0


def test_cuda_names_find_their_instruction() -> None:
    name = next(one for one in in_the_schedule(GPU) if "." in one)
    schedule = read_schedule(GPU, AXES, {name.replace(".", "_"): 1.0})
    assert schedule.unplaced_s == 0


def test_a_cpus_module() -> None:
    """The CPU's collectives are synchronous; a scan is a loop with a trip count."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), tuple(AXES))
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, None, "model"))

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        def turn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w) @ w.T, None

        return jnp.sum(jax.lax.scan(turn, x, w)[0])

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 32), (3, 32, 64))]
    jitted = jax.jit(step, in_shardings=(rows, columns), out_shardings=NamedSharding(mesh, P()))
    schedule = read_schedule(jitted.lower(*shapes).compile().as_text(), AXES)
    found = dict(schedule.transfers())
    assert found[Transfer("all-reduce", ("model",), 8 * 32 * 4)] == 3
    assert any(axes == ("data",) for axes in (one.axes for one in found))


def module(body: str, others: str = "") -> str:
    return f"HloModule m, is_scheduled=true\n\n{others}\nENTRY %main () -> f32[] {{\n{body}\n}}\n"


PAIR = """\
  %p = f32[64]{0} parameter(0)
  %started = ((f32[64]{0}), f32[16]{0}) async-start(%p), calls=%wrapped
  %fusion.1 = f32[64]{0} fusion(%p), kind=kLoop, calls=%fused
  %done = f32[16]{0} async-done(%started)"""
WRAPPED = """\
%wrapped (q: f32[64]) -> f32[16] {
  %q = f32[64]{0} parameter(0)
  ROOT %rs = f32[16]{0} reduce-scatter(%q), replica_groups=[2,4]<=[8], dimensions={0}
}
%fused () -> () {
}
"""


def test_async_start_wraps_a_collective() -> None:
    schedule = read_schedule(module(PAIR, WRAPPED), AXES, {"fusion.1": 2.0})
    transfer = Transfer("reduce-scatter", ("model",), 256)
    assert schedule == Schedule((Moment(0.0, transfer), Moment(2.0, wait=0)))
    assert schedule.show() == (
        "start 0: reduce-scatter over model, 256 bytes\ncompute 2000000.0 us\nwait 0"
    )


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("[2,4]<=[8]", ("model",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("{{0,1,2,3,4,5,6,7}}", ("data", "model")),
        ("{{0,1},{2,3},{4,5},{6,7}}", ("model",)),  # a part of the axis
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ("model",)),
        ("mesh['x'=8] {'x'}", ("data", "model")),
        ("{}", ("data", "model")),
    ],
)
def test_groups_are_mesh_axes(groups: str, axes: tuple[str, ...]) -> None:
    line = f"  ROOT %a = f32[4]{{0}} all-reduce(%p), replica_groups={groups}"
    (moment,) = read_schedule(module(line), AXES).moments
    assert moment.transfer == Transfer("all-reduce", axes, 16)
    assert moment.wait == 0


LOOP = """\
  %p = f32[4]{0} parameter(0)
  %w = f32[4]{0} while(%p), condition=%asks, body=%runs, backend_config={TRIPS}"""
BODY = """\
%asks (q: f32[4]) -> pred[] {
  %lt = pred[] fusion(%q), kind=kLoop, calls=%f
}
%runs (r: f32[4]) -> f32[4] {
  %k = f32[4]{0} fusion(%r), kind=kLoop, calls=%f
}
"""


def test_a_loop_divides_what_was_recorded_by_its_trips() -> None:
    text = module(LOOP.replace("TRIPS", '"known_trip_count":{"n":"4"}'), BODY)
    schedule = read_schedule(text, AXES, {"k": 8.0, "lt": 4.0, "w": 1.0})
    assert schedule.moments == (Moment(1.0, loop=ScheduledLoop(4, (Moment(3.0),))),)


def test_calls_are_inlined_and_branches_count_as_recorded() -> None:
    body = (
        "  %p = f32[4]{0} parameter(0)\n  %c = f32[4]{0} call(%p), to_apply=%runs\n"
        "  %b = f32[4]{0} conditional(%p), branch_computations={%runs, %asks}"
    )
    schedule = read_schedule(module(body, BODY), AXES, {"lt": 2.0})
    assert schedule.moments == (Moment(2.0),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (module("").replace(", is_scheduled=true", ""), "has no schedule"),
        (module(LOOP.replace("TRIPS", ""), BODY), "`w` does not say how often it runs"),
        (module("  %d = f32[4]{0} all-gather-done(%s)"), "`d` waits for a collective that starts"),
        (
            module(
                "  %b = f32[4]{0} conditional(%p), branch_computations={%one}",
                "%one (q: f32[4]) -> f32[4] {\n  %a = f32[4]{0} all-reduce(%q)\n}\n",
            ),
            "`b` has `a` in a branch",
        ),
        (
            module("  %a = f32[4]{0} all-reduce(%p), replica_groups={{0,16}}"),
            "more devices than the mesh",
        ),
    ],
)
def test_what_cannot_be_replayed_says_why(text: str, why: str) -> None:
    with pytest.raises(NotReplayable, match=why):
        read_schedule(text, AXES)
