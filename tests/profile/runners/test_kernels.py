"""Kernel times by instruction, from recordings of the shape that a GPU's have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.profiler import ProfileData

from cfp.links.replay import replay
from cfp.links.schedule import Schedule, read_schedule
from cfp.profile.runners.stand_in_worker import GAP_NS, gpu_kernels, recorded_runs
from tests.links.test_replay import FREE

# the kernel's name, `hlo_op`, start and end in nanoseconds, and who launched it or was launched
Kernel = tuple[str, str, int, int] | tuple[str, str, int, int, int]


def plane(name: str, lines: dict[str, Sequence[Kernel]]) -> str:
    """A plane as text: an event has its CUDA name, and `hlo_op` as a statistic."""
    text, names = [], dict[str, int]()
    for line, events in lines.items():
        body = []
        for cuda, op, start, end, *launch in events:
            for one in (cuda, op):
                names.setdefault(one, len(names) + 1)
            span = f"offset_ps: {start}000 duration_ps: {end - start}000"
            stat = f"stats {{ metadata_id: 1 ref_value: {names[op]} }}" if op else ""
            stat += "".join(f"stats {{ metadata_id: 2 int64_value: {one} }}" for one in launch)
            body.append(f"events {{ metadata_id: {names[cuda]} {span} {stat} }}")
        text.append(f'lines {{ name: "{line}" {" ".join(body)} }}')
    for key, value in names.items():
        text.append(f'event_metadata {{ key: {value} value {{ id: {value} name: "{key}" }} }}')
        if key != "hlo_op":
            entry = f'value {{ id: {value + 100} name: "{key}" }}'
            text.append(f"stat_metadata {{ key: {value + 100} {entry} }}")
    stats = 'stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }'
    stats += 'stat_metadata { key: 2 value { id: 2 name: "correlation_id" } }'
    joined = " ".join(text).replace("ref_value: ", "ref_value: 10")
    return f'planes {{ name: "{name}" {stats} {joined} }}'


def recording(*planes: str, launches: Sequence[Kernel] = ()) -> ProfileData:
    marks = [("cfp:0", "", 0, 10**6), ("cfp:1", "", 10**6, 2 * 10**6)]
    host = plane("/host:CPU", {"python": [*marks, *launches]})
    return ProfileData.from_text_proto(host + "".join(planes))


ONE = {"cfp:0": "a"}
MARKS = {"cfp:0": "a", "cfp:1": "a"}


def kernels_s(data: ProfileData, marks: Mapping[str, str] = ONE) -> Mapping[str, float]:
    (found,) = recorded_runs(data, marks, gpu_kernels).values()
    return found.kernels_s


def test_kernels_have_the_names_of_their_instructions() -> None:
    """Outside a CUDA graph `hlo_op` says it, inside one the kernel's own name; what communicates is
    left out, and so are lines that repeat the streams."""
    stream: list[Kernel] = [
        ("cutlass_80_gemm", "gemm_fusion.1", 1000, 5000),
        ("loop_add_fusion", "command_buffer_3", 6000, 8000),
        ("ncclDevKernel_AllReduce", "all-reduce-start.1", 8000, 9000),
        ("cutlass_80_gemm", "gemm_fusion.1", 9000, 10000),
    ]
    gpu = plane("/device:GPU:0", {"Stream #14(Compute)": stream, "XLA Ops": stream})
    times = kernels_s(recording(gpu))
    assert times == {
        "gemm_fusion.1": pytest.approx((4000 + 1000 + 1000) * 1e-9),  # the last one with its gap
        "loop_add_fusion": pytest.approx((1000 + 2000) * 1e-9),
    }


def test_runs_and_devices_are_averaged_and_long_gaps_are_the_hosts() -> None:
    one = {"Stream #1": [("k", "k", 0, 100), ("k", "k", 10**6, 10**6 + 300)]}
    two = {"Stream #1": [("k", "k", 0, 300), ("k", "k", 900_000, 900_000 + 100)]}
    gpus = [plane(f"/device:GPU:{i}", lines) for i, lines in enumerate((one, two))]
    times = kernels_s(recording(*gpus), MARKS)
    first = (100 + (300 + GAP_NS + 100)) / 2  # of the second device the gap counts as `GAP_NS`
    assert times["k"] == pytest.approx((first + 300) / 2 * 1e-9)


def test_the_gap_before_a_kernel_that_the_host_was_late_with_is_the_usual_one() -> None:
    """Of five kernels the second and third were in the device's queue, the others not."""
    kernels: list[Kernel] = [
        ("k", "k1", 100, 1000, 1),
        ("k", "k2", 2000, 3000, 2),
        ("k", "k3", 3500, 4000, 3),
        ("k", "k4", 7000, 8000, 4),
        ("k", "k5", 90_000, 91_000, 5),
    ]
    ends = (50, 900, 2900, 6900, 80_000)
    launches = [("launch", "", end - 10, end, i + 1) for i, end in enumerate(ends)]
    gpu = plane("/device:GPU:0", {"Stream #1": kernels})
    times = kernels_s(recording(gpu, launches=launches))
    usual = (0 + 1000 + 500) / 3
    spans = {"k1": 900, "k2": 2000, "k3": 1000, "k4": usual + 1000, "k5": usual + 1000}
    assert times == {name: pytest.approx(ns * 1e-9) for name, ns in spans.items()}


def test_the_host_has_what_is_before_the_first_kernel_and_after_the_last() -> None:
    gpu = plane("/device:GPU:0", {"Stream #1": [("k", "k", 1000, 2000), ("k", "k", 4000, 5000)]})
    (found,) = recorded_runs(recording(gpu), ONE, gpu_kernels).values()
    assert found.host_s == pytest.approx((10**6 - 4000) * 1e-9)


def test_a_run_without_kernels_has_no_times() -> None:
    assert kernels_s(recording()) == {}


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 3000)), min_size=1, max_size=8))
def test_kernels_never_count_twice(spans: list[tuple[int, int]]) -> None:
    """Kernels add up to what they cover and the gaps, each up to `GAP_NS`: by every nanosecond."""
    events = [(f"k{i}", f"k.{i}", at, at + long) for i, (at, long) in enumerate(spans)]
    gpu = plane("/device:GPU:0", {"Stream #1": events[::2], "Stream #2": events[1::2]})
    times = kernels_s(recording(gpu))
    busy = {ns for at, long in spans for ns in range(at, at + long)}
    counted = gap = 0
    for ns in range(min(busy), max(busy) + 1):
        gap = 0 if ns in busy else gap + 1
        counted += ns in busy or gap <= GAP_NS
    assert sum(times.values()) == pytest.approx(counted * 1e-9)


def test_a_recording_becomes_a_schedule() -> None:
    text = (
        "HloModule m, is_scheduled=true\n\nENTRY %main () -> f32[] {\n"
        "  %p = f32[4]{0} parameter(0)\n"
        "  %fusion.1 = f32[4]{0} fusion(%p), kind=kLoop, calls=%f\n"
        "  ROOT %all-reduce.1 = f32[4]{0} all-reduce(%fusion.1), replica_groups={}\n}\n"
    )
    stream = [("fusion_1", "fusion.1", 0, 2000), ("nccl", "all-reduce.1", 2000, 2500)]
    gpu = plane("/device:GPU:0", {"Stream #1": stream})
    times = kernels_s(recording(gpu))
    schedule = read_schedule(text, {"x": 8}, times)
    assert isinstance(schedule, Schedule)
    assert replay(schedule, FREE).time_s == pytest.approx(2e-6)
