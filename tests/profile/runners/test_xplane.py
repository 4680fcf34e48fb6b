"""Shares of a run, from real CPU traces and from made-up events of other devices."""

import time
from collections.abc import Iterator
from dataclasses import astuple
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.profiler import ProfileData
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cfp.profile.runners.xplane import Event, Line, is_collective, of_cpu, of_gpu, shares, within

DEVICES, REPEATS = 4, 3


def compute(a):
    for _ in range(3):
        a = jnp.tanh(a @ a.T) @ a
    return a


def talk(a):
    for _ in range(3):
        a = lax.psum(a, "x")
        a = lax.all_to_all(a, "x", 0, 0, tiled=True)
        a = lax.ppermute(a, "x", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])
    return lax.all_gather(a, "x", tiled=True)[: len(a)]


def loop(a):
    def body(carry, _):
        return jnp.tanh(lax.psum(carry @ (carry.T @ carry), "x")), None

    return lax.scan(body, a, None, length=6)[0]


def branch(a):
    return lax.cond(a[0, 0] > 0, lambda b: lax.psum(compute(b), "x"), lambda b: b, a)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProfileData, dict, dict]:
    """One session: the trace, its marks, and the mean wall time of each program, in seconds."""
    mesh = jax.make_mesh((DEVICES,), ("x",), devices=jax.devices()[:DEVICES])
    x = jax.device_put(np.full((DEVICES * 256, 512), 0.01, np.float32), NamedSharding(mesh, P("x")))
    programs = {}
    for function in (compute, talk, loop, branch):
        spmd = partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        programs[function.__name__] = jax.jit(spmd(function)).lower(x).compile()
        jax.block_until_ready(programs[function.__name__](x))
    folder = tmp_path_factory.mktemp("trace")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 2
    marks: dict[str, str] = {}
    walls = dict.fromkeys(programs, 0.0)
    with jax.profiler.trace(str(folder), profiler_options=options):
        for _ in range(REPEATS):
            for key, program in programs.items():
                mark = f"cfp:{len(marks)}"
                marks[mark] = key
                start = time.perf_counter()
                with jax.profiler.TraceAnnotation(mark):
                    jax.block_until_ready(program(x))
                walls[key] += (time.perf_counter() - start) / REPEATS
    (path,) = Path(folder).rglob("*.xplane.pb")
    return ProfileData.from_file(str(path)), marks, walls


def test_programs_of_one_session_are_told_apart(traced):
    data, marks, _ = traced
    found = shares(data, marks, DEVICES)
    assert set(found) == {"compute", "talk", "loop", "branch"}
    assert found["compute"].compute_s > 0
    assert found["compute"].transfer_s == found["compute"].waiting_s == 0
    communication_s = found["talk"].transfer_s + found["talk"].waiting_s
    assert communication_s > 2 * found["talk"].compute_s
    assert found["talk"].transfer_s > 0
    assert found["talk"].waiting_s > 0
    for key in ("loop", "branch"):
        assert found[key].compute_s > 0
        assert found[key].transfer_s > 0


def test_nothing_is_counted_twice(traced):
    data, marks, walls = traced
    for key, share in shares(data, marks, DEVICES).items():
        total_s = share.compute_s + share.transfer_s + share.waiting_s
        assert 0 < total_s <= walls[key] * 1.01, key


def test_a_mark_or_a_run_that_is_not_in_the_trace_is_left_out(traced):
    data, marks, _ = traced
    assert shares(data, {"cfp:elsewhere": "it"}, DEVICES) == {}
    assert shares(data, marks, DEVICES - 1) == {}, "more devices ran than asked for"
    mark = next(mark for mark, key in marks.items() if key == "talk")
    assert set(shares(data, {mark: "talk", "cfp:elsewhere": "it"}, DEVICES)) == {"talk"}


# Events of CPU threads, as they were seen, with easier times.


def op(name: str, start: float, end: float, device: int = 0, number: int = 0) -> Event:
    stats = {"hlo_op": name, "device_ordinal": device, "_p": number}
    return Event(name, start, end, stats)


def ended(name: str, at: float, number: int) -> Event:
    return Event(f"end: {name}", at, at + 1, {"_c": number})


def in_all(busy, end_ns: float = 1000.0) -> list[float]:
    (answer,) = within([busy], np.array([[0.0, end_ns]]))
    return [round(part * 1e9, 3) for part in answer[0]]


def test_waiting_is_inside_a_collective_whatever_its_name():
    for name in ("all-reduce.16", "psum.3", "my_layer.2"):
        events = [
            op(name, 0, 100),
            Event("Rendezvous", 10, 60),
            Event("Wait: pending_threads=3/4", 20, 40),
            Event("Wait: pending_threads=1/4", 40, 50),
            Event("Wait for rendezvous callback", 50, 55),
            op("dot.1", 100, 130),
        ]
        assert in_all(of_cpu([Line("a", events)])[0]) == [30, 70, 30]


def test_control_flow_is_the_operations_inside():
    first = [
        op("while.1", 0, 50, number=1),
        op("dot.1", 10, 20, number=2),
        op("all-reduce.1", 20, 40, number=3),
    ]
    # the loop goes on in another thread, and ends there
    second = [op("dot.1", 50, 60, number=4), ended("while.1", 99, 1), ended("dot.1", 99, 2)]
    assert in_all(of_cpu([Line("a", first), Line("b", second)])[0]) == [20, 20, 0]


def test_a_kernel_on_several_threads_lasts_until_it_ended_or_the_next_operation():
    first = [op("dot.1", 0, 10, number=1), op("dot.2", 60, 70, number=2)]
    second = [ended("dot.1", 99, 1), ended("dot.2", 80, 2)]
    other = [op("dot.1", 5, 15, device=1, number=3), op("dot.2", 30, 31, device=1, number=4)]
    busy = of_cpu([Line("a", first), Line("b", second), Line("c", other)])
    assert in_all(busy[0]) == [60 + 20, 0, 0]
    assert in_all(busy[1]) == [10 + 1, 0, 0]


def test_another_devices_operation_inside_is_not_control_flow():
    events = [op("dot.1", 0, 50, device=0), op("dot.1", 10, 20, device=1)]
    busy = of_cpu([Line("a", events)])
    assert in_all(busy[0]) == [50, 0, 0]
    assert in_all(busy[1]) == [10, 0, 0]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("all-reduce", True),
        ("all-reduce.16", True),
        ("all-gather-start.1.clone", True),
        ("%collective-permute-done.3 = f32[8]{0} collective-permute-done(%x)", True),
        ("ragged-all-to-all.2", True),
        ("all_gather_invariant.7", True),
        ("psum.7", True),
        ("recv-done.1", True),
        ("add_all-reduce_fusion", False),
        ("all-reduce_add_fusion.3", False),
        ("all-reduce-scatter-something", False),
        ("reduce.4", False),
        ("scatter", False),
        ("while.2", False),
    ],
)
def test_collectives_by_name(name, answer):
    assert is_collective(name) == answer


# Streams of a GPU. A kernel is (name, hlo_op), and whether it communicates.

KERNELS = [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce-start.1", True),
    ("ncclDevKernel_SendRecv", None, True),
    ("ncclDevKernel_AllGather_RING_LL", "command_buffer", True),
    ("stream_executor::gpu::AllReduceKernelImpl<float, 4>", None, True),
    ("one_shot_all_reduce", None, True),
    ("MemcpyP2P", None, True),
    ("MemcpyD2D", "collective-permute-start.2", True),
    ("MemcpyD2D", "copy.1", False),
    ("loop_add_fusion_3", "loop_add_fusion.3", False),
    ("input_all_reduce_fusion", "input_all-reduce_fusion", False),
    ("sm90_xmma_gemm_f32", None, False),
]
GRID = 24
ticks = st.integers(0, GRID)
kernels = st.tuples(st.sampled_from(KERNELS), ticks, ticks)


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(st.lists(kernels, max_size=5), max_size=3), st.lists(st.tuples(ticks, ticks)))
def test_a_gpu_against_brute_force(streams, windows):
    lines = [Line("XLA Ops", [Event("while", 0, GRID)])]
    computing: set[int] = set()
    talking: set[int] = set()
    for i, stream in enumerate(streams):
        events = []
        for (name, hlo_op, communicates), a, b in stream:
            start, end = sorted((a, b))
            events.append(Event(name, start, end, {"hlo_op": hlo_op} if hlo_op else {}))
            (talking if communicates else computing).update(range(start, end))
        lines.append(Line(f"Stream #{i}(Compute)", events))
    spans = [sorted(window) for window in windows] + [[0, GRID]]
    (found,) = within([of_gpu(lines)], np.array(spans, float))
    for (start, end), share in zip(spans, found, strict=True):
        inside = set(range(start, end))
        exact = [len(computing & inside), len((talking - computing) & inside), 0]
        np.testing.assert_allclose(share * 1e9, exact, atol=1e-6)


# A whole trace of other devices, as text.


def plane(name: str, line: str, events: list[tuple[str, int, int]]) -> str:
    def text() -> Iterator[str]:
        yield f'planes {{ name: "{name}" lines {{ name: "{line}" '
        for i, (_, start, end) in enumerate(events, 1):
            span = f"offset_ps: {start}000 duration_ps: {end - start}000"
            yield f"events {{ metadata_id: {i} {span} }}"
        yield "}"
        for i, (label, _, _) in enumerate(events, 1):
            yield f'event_metadata {{ key: {i} value {{ id: {i} name: "{label}" }} }}'
        yield "}"

    return "".join(text())


HOST = plane("/host:CPU", "python", [("cfp:0", 0, 100), ("cfp:1", 100, 200), ("cfp:2", 200, 300)])
MARKS = {"cfp:0": "a", "cfp:1": "a", "cfp:2": "b"}


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_devices_and_runs_are_averaged_and_a_run_without_events_is_left_out(kind):
    line, talks = ("Stream #7", "ncclDevKernel") if kind == "GPU" else ("XLA Ops", "all-reduce.1")
    devices = [
        plane(f"/device:{kind}:0", line, [("gemm", 0, 40), (talks, 40, 50), ("gemm", 100, 160)]),
        plane(f"/device:{kind}:1", line, [("gemm", 0, 20), (talks, 20, 50), ("gemm", 150, 190)]),
        plane(f"/device:{kind}:2", line, []),
    ]
    data = ProfileData.from_text_proto(HOST + "".join(devices))
    found = shares(data, MARKS, 2)
    assert set(found) == {"a"}
    assert astuple(found["a"])[:3] == pytest.approx((40e-9, 10e-9, 0))


def test_a_loop_on_a_tpu_is_the_operations_inside():
    events = [("while.1", 0, 90), ("fusion.1", 10, 30), ("all-gather-done.1", 30, 35)]
    data = ProfileData.from_text_proto(HOST + plane("/device:TPU:0", "XLA Ops", events))
    assert astuple(shares(data, {"cfp:0": "a"}, 1)["a"])[:3] == pytest.approx((20e-9, 5e-9, 0))
