"""Where the time of a run went, by the profiler's recording: computing, moving data, or waiting.

For each device the recording tells the intervals in which it computed (K), was in a collective (C),
and waited for other devices inside a collective (W). With |X| the time that X covers within the
run's window,

    compute = |K|      waiting = |K ∪ W| - |K|      transfer = |K ∪ W ∪ C| - |K ∪ W|

so a collective counts where nothing is computed meanwhile, nothing counts twice, and idle gaps
belong nowhere. Where K, C and W are found depends on the kind of plane: `of_cpu`, `of_gpu`,
`of_tpu`.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax.profiler import ProfileData, ProfileEvent

from cfp.profile.runners.job import Shares

Interval = tuple[float, float]

LAUNCH = "correlation_id"  # links what a GPU did to the call of the host that launched it
# what is read of an event; `_p` and `_c` link an operation to its end
_STATS = {"hlo_op", "device_ordinal", LAUNCH, "_p", "_c"}


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One event of a recording; two are the same only if they are the same object."""

    name: str
    start_ns: float
    end_ns: float
    stats: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """The events of one thread, or of one stream of a device."""

    name: str
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Busy:
    """What one device did: intervals in nanoseconds, in any order, overlapping as they like."""

    compute: list[Interval] = field(default_factory=list)
    collective: list[Interval] = field(default_factory=list)
    waiting: list[Interval] = field(default_factory=list)


def shares(data: ProfileData, marks: Mapping[str, str], devices: int) -> dict[str, Shares]:
    """Returns the shares of one run on an average device, for each key of `marks`.

    `marks` maps the name of a `TraceAnnotation` around one synchronous run of a program over
    `devices` devices to the key of that program. Runs of one key are averaged. A key is left out
    if the recording shows nothing of its runs, or more devices than there should be.
    """
    planes = list(read_planes(data))
    host = [line for name, lines in planes if name == "/host:CPU" for line in lines]
    runs = [event for line in host for event in line.events if event.name in marks]
    windows = np.array([(run.start_ns, run.end_ns) for run in runs]).reshape(-1, 2)
    kinds = [within(kind, windows) for kind in _by_kind(planes)]
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for i, run in enumerate(runs):
        # a run is on one kind of device: the first that has something to show
        shown = ([device[i] for device in kind if device[i].any()] for kind in kinds)
        seen = next(filter(None, shown), [])
        if 0 < len(seen) <= devices:
            parts[marks[run.name]].append(np.mean(seen, axis=0))
    return {key: Shares(*np.mean(part, axis=0).tolist()) for key, part in parts.items()}


def within(kind: Iterable[Busy], windows: np.ndarray) -> list[np.ndarray]:
    """Returns compute_s, transfer_s and waiting_s of each device, for each window (start_ns,
    end_ns)."""
    answer = []
    for busy in kind:
        compute = covered(busy.compute, windows)
        waited = covered(busy.compute + busy.waiting, windows)
        total = covered(busy.compute + busy.waiting + busy.collective, windows)
        parts = np.stack([compute, total - waited, waited - compute], axis=1)
        answer.append(parts.clip(min=0.0) * 1e-9)
    return answer


def covered(intervals: Iterable[Interval], windows: np.ndarray) -> np.ndarray:
    """Returns how much of each window the union of the intervals covers."""
    union: list[list[float]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1][1] = max(union[-1][1], end)
        elif start < end:
            union.append([start, end])
    if not union:
        return np.zeros(len(windows))
    edges = np.array(union)
    until_end = np.cumsum(edges[:, 1] - edges[:, 0])
    until_start = np.concatenate([[0.0], until_end[:-1]])
    # the time covered until t is piecewise linear in t, with a corner at each edge
    until = np.interp(windows, edges.ravel(), np.stack([until_start, until_end], axis=1).ravel())
    return np.asarray(until[:, 1] - until[:, 0])


# The kinds of planes.


def read_planes(data: ProfileData) -> Iterator[tuple[str, list[Line]]]:
    """Yields the planes of the host and of devices: their names and lines."""
    with warnings.catch_warnings():
        # Python 3.12 warns of the type of `stats`; were that an error, the process would abort
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in data.planes:
            if plane.name == "/host:CPU" or plane.name.startswith("/device:"):
                yield plane.name, [Line(i.name, list(map(_event, i.events))) for i in plane.lines]


def _event(event: ProfileEvent) -> Event:
    stats = {name: value for name, value in event.stats if name in _STATS}
    return Event(event.name, event.start_ns, event.end_ns, stats)


def _by_kind(planes: Iterable[tuple[str, Sequence[Line]]]) -> list[list[Busy]]:
    tpu, gpu, cpu = list[Busy](), list[Busy](), list[Busy]()
    for name, lines in planes:
        if re.fullmatch(r"/device:TPU:\d+", name):
            tpu.append(of_tpu(lines))
        elif re.fullmatch(r"/device:GPU:\d+", name):
            gpu.append(of_gpu(lines))
        elif name == "/host:CPU":
            cpu.extend(of_cpu(lines).values())
    return [tpu, gpu, cpu]


def of_tpu(lines: Iterable[Line]) -> Busy:
    """Returns the busy times of one TPU: its line of HLO operations. A loop is there too, around
    the operations it runs."""
    busy = Busy()
    for line in lines:
        if line.name == "XLA Ops":
            inside = list(_nested(line.events, lambda event: True))
            loops = {around for _, around in inside if around}
            for event, _ in inside:
                if event not in loops:
                    into = busy.collective if is_collective(event.name) else busy.compute
                    into.append((event.start_ns, event.end_ns))
    return busy


def of_gpu(lines: Iterable[Line]) -> Busy:
    """Returns one GPU: a line for each stream, its kernels and copies. Waiting is inside NCCL's
    kernels, where it cannot be told from the transfer. Other lines repeat the streams in other
    words.
    """
    busy = Busy()
    for line in lines:
        if line.name.startswith("Stream"):
            for event in line.events:
                into = busy.collective if communicates(event) else busy.compute
                into.append((event.start_ns, event.end_ns))
    return busy


def of_cpu(lines: Iterable[Line]) -> dict[int, Busy]:
    """Returns the busy times of CPU devices, by ordinal. Threads run operations of any device, so
    all lines matter.

    An operation around others of its device is control flow. One around a `Rendezvous` is a
    collective, and the `Wait: pending_threads` in there are for devices yet to arrive. A kernel
    split over threads goes on after its event, until the next operation of its device; its `end:`
    marker is no better than a bound, as it often comes after all that was waiting for the kernel.
    """
    ops: dict[int, list[Event]] = defaultdict(list)
    waits: dict[int, list[Interval]] = defaultdict(list)
    control_flow, meetings, done_ns = set[Event](), set[Event](), dict[object, float]()
    for line in lines:
        for event, around in _nested(line.events, lambda event: _device(event) is not None):
            device, at = _device(event), _device(around)
            if device is not None:
                ops[device].append(event)
                if around and device == at:
                    control_flow.add(around)
            elif event.name.startswith("end: "):
                done_ns[event.stats.get("_c")] = event.start_ns
            elif around and event.name == "Rendezvous":
                meetings.add(around)
            elif at is not None and event.name.startswith("Wait: "):
                waits[at].append((event.start_ns, event.end_ns))

    answer = {}
    for device, all_ops in ops.items():
        answer[device] = busy = Busy(waiting=waits[device])
        leaves = sorted((e for e in all_ops if e not in control_flow), key=lambda e: e.start_ns)
        nexts = [event.start_ns for event in leaves[1:]] + [float("inf")]
        for event, next_ns in zip(leaves, nexts, strict=True):
            done = done_ns.get(event.stats.get("_p"), event.end_ns)
            end_ns = max(event.end_ns, min(done, next_ns))
            meets = event in meetings or is_collective(event.name)
            (busy.collective if meets else busy.compute).append((event.start_ns, end_ns))
    return answer


def _device(event: Event | None) -> int | None:
    if event is None or "hlo_op" not in event.stats:
        return None
    ordinal = event.stats.get("device_ordinal")
    return ordinal if isinstance(ordinal, int) else None


def _nested(
    events: Iterable[Event], encloses: Callable[[Event], bool]
) -> Iterator[tuple[Event, Event | None]]:
    """Yields the events of one line in order of time, each with the innermost that encloses it."""
    stack: list[Event] = []
    for event in sorted(events, key=lambda e: (e.start_ns, -e.end_ns)):
        while stack and stack[-1].end_ns <= event.start_ns:
            stack.pop()
        yield event, stack[-1] if stack else None
        if encloses(event):
            stack.append(event)


# Collectives, by name: an HLO opcode, or the JAX primitive that XLA named the operation after.

_COLLECTIVE = re.compile(
    r"%?(all-reduce|(ragged-)?all-to-all|all-gather(-invariant)?|reduce-scatter"
    r"|collective-(permute|broadcast)|psum(-invariant)?|pmax|pmin|ppermute|send|recv)"
    r"(-start|-done)?(\.[a-z0-9]+)*"
)
_KERNEL = re.compile(r"nccl|nvshmem|memcpyp2p|allreducekernel", re.IGNORECASE)
_KERNEL_ALONE = re.compile(r"all_?(reduce|gather|to_?all)|reduce_?scatter", re.IGNORECASE)


def is_collective(op: str) -> bool:
    """Returns whether an HLO operation of this name is a collective, not a fusion with one in its
    name."""
    return bool(_COLLECTIVE.fullmatch(op.split(" ")[0].replace("_", "-")))


def communicates(event: Event) -> bool:
    """Returns whether an event of a GPU is a collective's kernel."""
    if _KERNEL.search(event.name):
        return True  # for certain, though `hlo_op` may name a command buffer around it
    op = event.stats.get("hlo_op")
    if isinstance(op, str) and op:
        return is_collective(op)
    return bool(_KERNEL_ALONE.search(event.name))
