"""From the search's answers to one plan: what their steps really need and take decides.

The best predictions run as full steps, in turn. With a memory limit m and a step found to need d
more than the search counts, the next search is for m - d (or for more, if it needs less), until
that finds nothing new. Of those that fit, the fastest is chosen; which others tie with it is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cfp.audit import NO_TIME, audit
from cfp.candidates import Candidate, Candidates
from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import MeasuredStep, tied
from cfp.profile.campaign import Campaign
from cfp.profile.turns import OutOfTime

AUDITED = 3
ATTEMPTS = 4  # searches with the limit corrected
WORTHWHILE = 0.01  # of the limit: a smaller correction changes nothing


@dataclass(frozen=True, slots=True)
class Chosen:
    """`steps` are all that were measured, the chosen one first."""

    candidate: Candidate
    steps: tuple[MeasuredStep, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tried:
    """What is known of a candidate: its measured step, or the compiler's memory figure alone."""

    candidate: Candidate
    step: MeasuredStep | None
    memory_bytes: int | None

    @property
    def time_s(self) -> float:
        predicted = self.candidate.plan.predicted
        assert predicted is not None
        return predicted.time_s if self.step is None else self.step.measured_s

    def fits(self, limit: int | None) -> bool:
        if self.step is not None and self.step.failed is not None:
            return False
        return limit is None or self.memory_bytes is None or self.memory_bytes <= limit


@dataclass
class Chooser:
    """`count` candidates are measured; `others` are plans to measure beside them, or why there is
    none."""

    candidates: Candidates
    campaign: Campaign
    limit: int | None
    count: int
    others: Mapping[str, Plan | str]
    _tried: dict[tuple[int, ...], _Tried] = field(default_factory=dict)
    _beside: dict[str, MeasuredStep] = field(default_factory=dict)
    _out_of_time: bool = False

    def choose(self) -> Chosen:
        allowance = self.limit
        for _ in range(ATTEMPTS):
            found = self.candidates.best(allowance, max(self.count, 1))
            found = found or self.candidates.smallest()  # which may need less than predicted
            new = [one for one in found if one.point.choice not in self._tried]
            if not new:
                break
            self._try(new)
            if self.limit is None or allowance is None:
                break
            corrected = self.limit - self._missed(found)
            if abs(corrected - allowance) <= WORTHWHILE * self.limit:
                break
            allowance = corrected
        fitting = [tried for tried in self._tried.values() if tried.fits(self.limit)]
        if not fitting:
            raise self._nothing_fits()
        best = min(fitting, key=lambda tried: tried.time_s)
        rest = [t.step for t in self._tried.values() if t.step is not None and t is not best]
        steps = () if best.step is None else (best.step, *rest, *self._beside.values())
        return Chosen(best.candidate, steps, tuple(self._notes(best, steps)))

    def _try(self, candidates: Sequence[Candidate]) -> None:
        if self.count and not self._out_of_time:
            try:
                self._measure(candidates)
                return
            except OutOfTime:
                self._out_of_time = True
        for candidate in candidates[:1]:
            needs = None if self.limit is None else candidate.plan.memory_bytes()
            self._tried[candidate.point.choice] = _Tried(candidate, None, needs)

    def _measure(self, candidates: Sequence[Candidate]) -> None:
        """All in one go, templates with the first."""
        first = len(self._tried)
        plans = {f"predicted {first + i + 1}": one.plan for i, one in enumerate(candidates)}
        beside = {} if first else {n: p for n, p in self.others.items() if isinstance(p, Plan)}
        steps = audit(self.campaign, {**plans, **beside})
        if all(steps[name].failed == NO_TIME for name in plans):
            raise OutOfTime
        for name, candidate in zip(plans, candidates, strict=True):
            step = steps[name]
            needs = None if step.failed is not None else step.memory_bytes
            self._tried[candidate.point.choice] = _Tried(candidate, step, needs)
        for name, plan in self.others.items() if not first else ():
            if isinstance(plan, Plan):
                self._beside[name] = steps[name]
            else:
                self._beside[name] = MeasuredStep(name, None, 0.0, 0.0, 0.0, 0, plan)

    def _missed(self, found: Sequence[Candidate]) -> int:
        """By how much the candidates need more than predicted, the worst that exceeds; where none
        does, the first. Negative: they need less."""
        assert self.limit is not None
        known = [self._tried[one.point.choice] for one in found if one.point.choice in self._tried]
        missed = [
            (t.memory_bytes > self.limit, t.memory_bytes - t.candidate.point.memory_bytes)
            for t in known
            if t.memory_bytes is not None
        ]
        over = [by for exceeds, by in missed if exceeds]
        if over:
            return max(over)
        return missed[0][1] if missed else 0

    def _nothing_fits(self) -> CfpError:
        """Says what would."""
        failed = [t.step.failed for t in self._tried.values() if t.step and t.step.failed]
        frontier = self.candidates.solve(None).frontier
        if not frontier:
            return CfpError(
                "The measurements do not make a plan yet: some segment or resharding has none that "
                "runs. Raise `budget`; what was measured is kept."
            )
        if self.limit is None:
            return CfpError(f"None of the plans runs: {failed[0] if failed else 'no reason given'}")
        smallest = frontier[0]
        tried = self._tried.get(smallest.choice)
        compiled = None if tried is None else tried.memory_bytes
        needs = self.candidates.predict(smallest).memory_bytes if compiled is None else compiled
        ways = "Raise memory_limit or use more devices"
        if not self.candidates.analysis.graph.donated:
            ways += ", or let the step donate its state (jax.jit(step, donate_argnums=...))"
        return CfpError(
            f"No plan fits {bytes_text(self.limit)} per device: the smallest needs "
            f"{bytes_text(needs)} ({self.candidates.show(smallest)}). {ways}."
        )

    def _notes(self, best: _Tried, steps: Sequence[MeasuredStep]) -> list[str]:
        notes = []
        ties = tied(steps) if steps else []
        if ties:
            names = ", ".join(step.name for step in ties)
            notes.append(f"Within noise as fast: {names}.")
        if self._out_of_time:
            notes.append("The budget ended before full steps were run: nothing checks the times.")
        elif not self.count:
            notes.append("No full step was run (audit=False): nothing checks the times.")
        missing = self.candidates.profile.missing
        if missing:
            notes.append(f"The budget ended before all was measured: {', '.join(missing)}.")
        if self.candidates.unmet:
            where = ", ".join(self.candidates.unmet)
            notes.append(
                f"No measured option lies as the pins of segments {where} ask: their resharding is "
                "not predicted."
            )
        return notes
