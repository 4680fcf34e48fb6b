"""Runs the programs of a wave that are compiled, and writes down what they took.

They run in turn with the anchor (`rounds`). What it takes to start a program is on record with
its measurement:

    overhead = base_s + arguments * each_s
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cfp.profile.measure.compiling import WorkerPrograms
from cfp.profile.measure.findings import Findings, KernelTimes, distinct
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.progress import Progress
from cfp.profile.measure.rounds import Anchor, Effort, Rounds
from cfp.profile.programs.requests import Request
from cfp.profile.runners.job import Compiled
from cfp.profile.runners.runner import Runner


@dataclass
class Running:
    """`anchor` takes `anchor_s` as a rule. `seconds` were spent running, `ran` counts the programs
    that ran, and `taken_over` those that did not have to, because another has their kernels."""

    runner: Runner
    programs: WorkerPrograms
    findings: Findings
    kernel_times: KernelTimes
    progress: Progress
    anchor: Request | None = None
    anchor_s: float = 0.0
    base_s: float = 0.0
    each_s: float = 0.0
    seconds: float = 0.0
    ran: int = 0
    taken_over: int = 0

    def run(
        self, wave: Sequence[Request], effort: Effort, deadline: float
    ) -> dict[str, Measurement]:
        """Runs programs in turn, writes down what they took, and returns it by key."""
        if not wave:
            return {}
        self.progress.running([request.name for request in wave])
        rounds = Rounds(
            self.runner, effort, self._ready_anchor(), self._limits_s(wave, effort), deadline
        )
        start = time.monotonic()
        results = rounds.run([request.key for request in wave])
        self.seconds += time.monotonic() - start
        made: dict[str, Measurement] = {}
        for request in wave:
            result = results.get(request.key)
            if result is None:
                continue  # left out
            compiled = self.programs.answers[request.key]
            assert isinstance(compiled, Compiled)
            made[request.key] = replace(
                result,
                name=request.name,
                overhead_s=self._overhead_s(request),
                compile_s=compiled.seconds,
                memory=compiled.memory,
                collectives=compiled.collectives,
            )
            self.findings.write(request, made[request.key])
        self.ran += len(made)
        return made

    def run_distinct(self, wave: Sequence[Request], effort: Effort, deadline: float) -> None:
        """Runs the programs whose kernels no other program has, and takes over the times of the
        others. (Full steps all run: they are what predictions are checked against.)"""
        programs = self.programs.ready()
        first, again = distinct(self._take_over(wave), programs)
        for key, measured in self.run(first, effort, deadline).items():
            self.kernel_times.keep(measured, programs[key])
        left = self._take_over(again)  # they have the kernels of one that failed
        self.run(left, effort, deadline)

    def _take_over(self, wave: Sequence[Request]) -> list[Request]:
        """Knows the programs whose kernels were measured in others, and returns the rest."""
        found = self.kernel_times.find(wave, self.programs.ready())
        for request in wave:
            if request.key in found:
                self.taken_over += 1
                self.findings.write(request, found[request.key])
        return [request for request in wave if request.key not in found]

    def _ready_anchor(self) -> Anchor | None:
        if self.anchor is None or self.anchor.key not in self.programs.ready():
            return None
        return Anchor(self.anchor.key, self.anchor_s)

    def _limits_s(self, wave: Sequence[Request], effort: Effort) -> dict[str, float]:
        """Returns after how long each program is given up, where others are that much faster."""
        return {
            request.key: self.findings.limit_s(request, effort.cutoff, self._overhead_s(request))
            for request in wave
        }

    def _overhead_s(self, request: Request) -> float:
        return self.base_s + request.arguments * self.each_s
