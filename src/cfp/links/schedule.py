"""A compiled module as a schedule: measured kernels, the collectives among them, and the waits.

XLA schedules a module before it runs (`is_scheduled=true`): instructions run in the order of the
text. A schedule keeps of it what its time depends on, as a list of moments:

    moment    kernels that run for `compute_s`, and then one of
                  transfer       a collective starts
                  wait = i       the compute stream waits for the transfer of moment i of the list
                  loop           a list of moments that runs several times

A synchronous collective waits for itself. Kernels in a row are one moment, so a training step is a
few hundred numbers: it is kept with a measurement, and replayed with any network.

A start whose `backend_config` says `is_sync` is synchronous: XLA found nothing to run beside it. A
loop has the trip count that XLA states. A branch counts by what was recorded of it. A collective
over a part of a mesh axis is taken to span that axis, which is no faster.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cfp.links.collectives import moved_arrays
from cfp.links.hlo import (
    COLLECTIVE,
    Instruction,
    Module,
    groups_of,
    read_module,
    spanned_axes,
    trip_count,
)


class NotReplayable(Exception):
    """A module whose schedule cannot be replayed, and why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective: XLA's name of its kind, the mesh axes that its groups span, and the bytes
    that one device holds of it (`collectives.Piece` has the rule)."""

    kind: str
    axes: tuple[str, ...]
    bytes: int

    def show(self) -> str:
        return f"{self.kind} over {'+'.join(self.axes) or 'nothing'}, {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class Moment:
    """See the module's docstring."""

    compute_s: float = 0.0
    transfer: Transfer | None = None
    wait: int | None = None
    loop: ScheduledLoop | None = None


@dataclass(frozen=True, slots=True)
class ScheduledLoop:
    times: int
    body: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The moments of one program. `unplaced_s` is the recorded time of kernels that no instruction
    has the name of; it is part of the last moment."""

    moments: tuple[Moment, ...]
    unplaced_s: float = 0.0

    def transfers(self) -> Iterator[tuple[Transfer, int]]:
        """Yields every transfer, and how often one run of the program makes it."""
        return _transfers(self.moments, 1)

    def check(self) -> None:
        """Raises `ValueError` where no program has such a schedule: files hold them."""
        _check(self.moments)

    def show(self) -> str:
        return "\n".join(_lines(self.moments, ""))


def read_schedule(
    text: str, axes: Mapping[str, int], kernels_s: Mapping[str, float] | None = None
) -> Schedule:
    """Returns the schedule of a compiled module on a mesh.

    `kernels_s` is the time that one run of the program spends in each instruction, by its name; an
    instruction that it has not is no kernel. Where names are those of CUDA kernels, a letter that
    these cannot have is an underscore.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise NotReplayable("The compiled module has no schedule (`is_scheduled=true`).")
    module, entry = read_module(text)
    recorded = dict(kernels_s or {})
    reader = _Reader(module, axes, _by_instruction(module, recorded))
    moments = _List()
    reader.read(moments, entry, 1)
    left_s = sum(recorded.values()) - reader.placed_s
    unplaced_s = left_s if left_s > _ROUNDING * sum(recorded.values()) else 0.0
    moments.compute_s += unplaced_s
    return Schedule(moments.closed(), unplaced_s)


_ROUNDING = 1e-9  # of the recorded time: what adding it up in another order may change
_Collective = tuple[str, Instruction, str | None]  # its kind, and the computation that wraps it
SYNC = re.compile(r'"is_sync":\s*true')


def _by_instruction(module: Module, recorded: Mapping[str, float]) -> dict[str, float]:
    """Returns the recorded times by the instructions' own names."""
    found: dict[str, float] = defaultdict(float)
    names = {re.sub(r"\W", "_", name): name for lines in module.values() for name in lines}
    known = {name for lines in module.values() for name in lines}
    for name, seconds in recorded.items():
        own = name if name in known else names.get(re.sub(r"\W", "_", name), name)
        found[own] += seconds
    return found


@dataclass
class _List:
    """Moments under construction; kernels in a row add up."""

    moments: list[Moment] = field(default_factory=list)
    compute_s: float = 0.0
    started: dict[str, int] = field(default_factory=dict)  # instruction -> its moment

    def add(
        self,
        transfer: Transfer | None = None,
        wait: int | None = None,
        loop: ScheduledLoop | None = None,
    ) -> int:
        self.moments.append(Moment(self.compute_s, transfer, wait, loop))
        self.compute_s = 0.0
        return len(self.moments) - 1

    def wait(self, start: int) -> None:
        """Waits for the transfer that a moment starts, unless it did that itself."""
        if self.moments[start].wait is None:
            self.add(wait=start)

    def closed(self) -> tuple[Moment, ...]:
        if self.compute_s:
            self.add()
        return tuple(self.moments)


@dataclass
class _Reader:
    module: Module
    axes: Mapping[str, int]
    recorded: Mapping[str, float]
    placed_s: float = 0.0

    def read(self, into: _List, computation: str, times: int) -> None:
        """Adds the moments of a computation that one run of the program runs `times` times."""
        lines = self.module[computation]
        for it in lines.values():
            if (found := self._collective(it)) is not None:
                self._start(into, it, found, computation)
            elif it.opcode.endswith("-done") and it.operands[0] in into.started:
                into.wait(into.started[it.operands[0]])
            elif self._ends_collective(it, lines):
                raise NotReplayable(f"`{it.name}` waits for a collective that starts elsewhere.")
            elif it.opcode == "while":
                self._loop(into, it, times)
            elif it.opcode == "call":
                into.compute_s += self._kernel(it, times)
                for _, callee in it.called:
                    self.read(into, callee, times)
            elif it.opcode == "conditional":
                into.compute_s += self._branches(it, times)
            else:
                into.compute_s += self._kernel(it, times)

    def _kernel(self, it: Instruction, times: int) -> float:
        total_s = self.recorded.get(it.name, 0.0)
        self.placed_s += total_s
        return total_s / times

    def _collective(self, it: Instruction) -> _Collective | None:
        """Returns the collective that begins here: one with an opcode of its own, or one that
        `async-start` wraps, whose operands are in the computation that wraps it."""
        if match := COLLECTIVE.fullmatch(it.opcode):
            return match[1], it, None
        for _, callee in it.called if it.opcode == "async-start" else ():
            for line in self.module[callee].values():
                if match := COLLECTIVE.fullmatch(line.opcode):
                    return match[1], line, callee
        return None

    def _ends_collective(self, it: Instruction, lines: Mapping[str, Instruction]) -> bool:
        if not it.opcode.endswith("-done"):
            return False
        if COLLECTIVE.fullmatch(it.opcode.removesuffix("-done")):
            return True
        began = lines.get(it.operands[0])
        return it.opcode == "async-done" and (began is None or self._collective(began) is not None)

    def _start(self, into: _List, it: Instruction, found: _Collective, computation: str) -> None:
        kind, inner, wrapper = found
        self.placed_s += self.recorded.get(it.name, 0.0)  # a link says what it takes, not this run
        arrays = moved_arrays(inner, kind, self.module[wrapper or computation])
        transfer = Transfer(kind, self._spanned(inner), sum(size for _, _, size in arrays))
        waits = not it.opcode.endswith("-start") or SYNC.search(it.rest) is not None
        into.started[it.name] = into.add(transfer, len(into.moments) if waits else None)

    def _spanned(self, it: Instruction) -> tuple[str, ...]:
        shape = tuple(self.axes.values())
        axes = spanned_axes(groups_of(it, math.prod(shape)), shape)
        if axes is None:
            raise NotReplayable(f"`{it.name}` has groups of more devices than the mesh has.")
        return tuple(name for at, name in enumerate(self.axes) if at in axes)

    def _loop(self, into: _List, it: Instruction, times: int) -> None:
        trips = trip_count(it)
        if trips is None:
            raise NotReplayable(f"The loop `{it.name}` does not say how often it runs.")
        into.compute_s += self._kernel(it, times)
        if trips == 0:
            return
        body = _List()
        called = dict(it.called)
        self.read(body, called["body"], times * trips)
        # A condition is asked once more than the body runs; what it took is spread over the body.
        for line in self.module[called["condition"]].values():
            body.compute_s += self._kernel(line, times * trips)
        into.add(loop=ScheduledLoop(trips, body.closed()))

    def _branches(self, it: Instruction, times: int) -> float:
        """Returns what was recorded of a conditional and of the branches that it took."""
        seconds = self._kernel(it, times)
        for _, callee in it.called:
            for line in self.module[callee].values():
                if self._collective(line) or line.opcode in {"while", "call", "conditional"}:
                    raise NotReplayable(
                        f"The conditional `{it.name}` has `{line.name}` in a branch: what it "
                        "takes depends on which branch runs."
                    )
                seconds += self._kernel(line, times)
        return seconds


def _check(moments: Sequence[Moment]) -> None:
    for at, moment in enumerate(moments):
        sent = 0 if moment.transfer is None else moment.transfer.bytes
        if not 0 <= moment.compute_s < math.inf or sent < 0:
            raise ValueError("`schedule` has numbers that no schedule has")
        if moment.wait is not None and (
            not 0 <= moment.wait <= at or moments[moment.wait].transfer is None
        ):
            raise ValueError("`schedule` waits for what does not start")
        if moment.loop is not None:
            if moment.loop.times < 1:
                raise ValueError("`schedule` has a loop whose `times` is below 1")
            _check(moment.loop.body)


def _transfers(moments: Sequence[Moment], times: int) -> Iterator[tuple[Transfer, int]]:
    for moment in moments:
        if moment.transfer is not None:
            yield moment.transfer, times
        if moment.loop is not None:
            yield from _transfers(moment.loop.body, times * moment.loop.times)


def _lines(moments: Sequence[Moment], indent: str) -> Iterator[str]:
    for at, moment in enumerate(moments):
        if moment.compute_s:
            yield f"{indent}compute {moment.compute_s * 1e6:.1f} us"
        if moment.transfer is not None:
            waits = "run" if moment.wait == at else f"start {at}"
            yield f"{indent}{waits}: {moment.transfer.show()}"
        elif moment.wait is not None:
            yield f"{indent}wait {moment.wait}"
        if moment.loop is not None:
            yield f"{indent}loop {moment.loop.times} times"
            yield from _lines(moment.loop.body, f"{indent}  ")
