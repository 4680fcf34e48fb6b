"""From the search's answers to one plan: what their steps really need and take decides.

The best predictions run as full steps, in turn. Near a memory limit m the best one runs alone at
first: where it does not fit, the others are not expected to. With a step found to need d more than
the search counts, the next search is for m - d (or for more, if it needs less), until that finds
nothing new. What leads within m - d may not be measured yet, and is before that search, if there is
time (`Chooser.select`). What is predicted of later plans counts what the earlier ones needed beyond
their segments (`Proposal.counting`). The fastest that fits is chosen; where others are as fast, as
far as the rounds tell, the one that needs least memory is taken, if it is clearly less.

The fastest of several in some rounds is, in part, the luckiest. So the chosen one runs again, on
fresh rounds, with the templates beside it: what is reported of it, and how it compares. So does the
step on one device alone, which may be faster than the mesh.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import MeasuredStep
from cfp.planning.audit import NO_TIME, audit, confirm, what_they_show
from cfp.planning.proposals import Proposal, Proposals
from cfp.planning.tried import Tried, best_of, in_its_rounds, memory_beyond, taken_for_memory
from cfp.profile import Option
from cfp.profile.explore.keeps import NEAR
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.rounds import OutOfTime

ATTEMPTS = 4  # searches with the limit corrected: each may take full steps, so there is an end
WORTHWHILE = 0.01  # of the limit: a smaller correction is not worth a search, if a plan fits
GAIN = 0.98  # of a time: less than predictions of two plans are off by, and no full steps' worth


@dataclass(frozen=True, slots=True)
class Chosen:
    """`steps` are all that were measured to choose, `confirmed` are on fresh rounds; the chosen one
    is first in both. `limit_bytes` is what a device may need."""

    proposal: Proposal
    limit_bytes: int | None
    steps: tuple[MeasuredStep, ...]
    confirmed: tuple[MeasuredStep, ...]
    notes: tuple[str, ...]


@dataclass
class Chooser:
    """`select` tries what is proposed, as often as more is measured, and `choose` then chooses of
    all that was tried. `count` proposals are measured; `others` are plans to run beside the chosen
    one, or why there is none."""

    campaign: Campaign
    limit: int | None
    count: int
    others: Mapping[str, Plan | str]
    _tried: dict[tuple[Option, ...], Tried] = field(default_factory=dict)
    _out_of_time: bool = False
    _waves: int = 0
    _beyond_bytes: int = 0  # as the plan tells that was tried last

    def select(self, proposals: Proposals, allowance: int | None, *, last: bool) -> int | None:
        """Tries what is proposed for an allowance, which is the limit, or less where plans need
        more than predicted. Returns the allowance for which more should be measured, where that is
        not the `last` time; None where there is nothing to gain by it."""
        self.proposals = proposals
        with self.campaign.until(self.campaign.budget.chosen()):
            return self._select(allowance, last=last)

    def choose(self) -> Chosen:
        """Returns the best plan of those tried, on fresh rounds."""
        fitting = self._fitting()
        if not fitting:
            raise self._nothing_fits()
        best, fastest = best_of(fitting)
        confirmed = self._confirm(best)
        rest = [t for t in self._tried.values() if t is not best]
        steps = () if best.step is None else (best.step, *in_its_rounds(best, rest))
        notes = [*what_they_show(steps, confirmed), *taken_for_memory(best, fastest)]
        notes += self._unchecked(best, confirmed)
        notes += memory_beyond(best.proposal.beyond_bytes)
        return Chosen(best.proposal, self.limit, steps, confirmed, tuple(notes))

    def _select(self, allowance: int | None, *, last: bool) -> int | None:
        """Tries what the search proposes, until nothing new comes of it. Where none of it fits, the
        plan that is predicted to need least is tried last."""
        for _ in range(ATTEMPTS):
            found = self.proposals.best(allowance, max(self.count, 1))
            if not found:
                found = self._smallest()  # it may need less than predicted
            new = [one for one in found if one.options not in self._tried]
            raised = self.limit is not None and allowance is not None and allowance > self.limit
            if not new or (raised and not any(map(self._may_gain, new))):
                break
            if self.count and len(new) > 1 and self._near(new[0]):
                self._try(new[:1])
            tried = self._tried.get(new[0].options)
            if tried is None or tried.fits(self.limit):
                self._try(new)
            if self.limit is None or allowance is None:
                break
            corrected = self.limit - self._missed(found)
            least = int(WORTHWHILE * self.limit)
            if not last and corrected < allowance - least and self._may_measure_more():
                return corrected
            if not self._fitting():
                corrected = min(corrected, allowance - least)
            elif abs(corrected - allowance) <= least:
                break
            allowance = corrected
        if not self._tried or self._fitting():
            return None
        smallest = [one for one in self._smallest() if one.options not in self._tried]
        if smallest:
            self._try(smallest)
        if last or self.limit is None or self._fitting():
            return None
        missed = max([0, *(tried.missed_bytes for tried in self._tried.values())])
        return self.limit - missed if missed else None

    def _may_measure_more(self) -> bool:
        """Returns whether there is time to measure more before it is known what fits."""
        return time.monotonic() < self.campaign.budget.profiled

    def _may_gain(self, one: Proposal) -> bool:
        """Returns whether a plan is predicted to be clearly faster than all that fit."""
        fitting = [tried.proposal.point.time_s for tried in self._fitting()]
        return not fitting or one.point.time_s < GAIN * min(fitting)

    def _near(self, proposal: Proposal) -> bool:
        """Returns whether a plan may turn out to miss the limit, and others would be compiled for
        nothing: not where the compiler makes several in the time of one."""
        if self.limit is None or self.campaign.budget.abreast > 1:
            return False
        return proposal.point.memory_bytes > NEAR * self.limit

    def _smallest(self) -> list[Proposal]:
        """Returns the plan that is predicted to need least, if the measurements make any."""
        smallest = self.proposals.smallest()
        return [] if smallest is None else [self.proposals.make(smallest)]

    def _fitting(self) -> list[Tried]:
        return [tried for tried in self._tried.values() if tried.fits(self.limit)]

    def _confirm(self, best: Tried) -> tuple[MeasuredStep, ...]:
        """Measures the chosen one on fresh rounds, templates beside it; nothing without audit."""
        if not self.count:
            return ()
        plan = best.proposal.plan
        name = "predicted 1" if best.step is None else best.step.name
        plans = {name: plan, **{n: p for n, p in self.others.items() if isinstance(p, Plan)}}
        try:
            found = confirm(self.campaign, plans, takes_s=best.time_s, limit=self.limit)
        except OutOfTime:
            found = {}
        predicted = plan.predicted
        late = MeasuredStep(name, None if predicted is None else predicted.time_s, left_out=NO_TIME)
        steps = [found.get(name, late)]
        for other, made in self.others.items():
            if isinstance(made, Plan):
                steps.append(found.get(other, MeasuredStep(other, None, left_out=NO_TIME)))
            else:
                steps.append(MeasuredStep(other, None, failed=made))
        if plan.mesh.size > 1:
            steps.append(found.get(ALONE, MeasuredStep(ALONE, None, left_out=NO_TIME)))
        return tuple(steps)

    def _try(self, proposals: Sequence[Proposal]) -> None:
        """Tries proposals, and learns from them what others may need. A plan that was tried before
        counts what was known then, and not what it showed itself."""
        tried = [self._tried.get(one.options) for one in proposals]
        known = [self._beyond_bytes if t is None else t.proposal.beyond_bytes for t in tried]
        self._run([one.counting(more) for one, more in zip(proposals, known, strict=True)])
        telling = self._telling(proposals)
        if telling is not None:
            self._beyond_bytes = telling.beyond_bytes

    def _run(self, proposals: Sequence[Proposal]) -> None:
        """Measures proposals. Where there is no time for all of them the best alone has all that is
        left, and is waited for if it is being compiled then; where nothing is left its memory is
        the compiler's figure, or is not known."""
        if self.count and not self._out_of_time:
            if self._measure(proposals):
                return
            self._out_of_time = True
            with self.campaign.awaiting():
                if self._measure(proposals[:1]):
                    return
        best = proposals[0]
        if best.options in self._tried:
            return
        needs = None
        here = self.campaign.network is None  # else only the worker can compile it
        if here and self.limit is not None and self.campaign.budget.compiles():
            needs = best.plan.memory_bytes()
        self._tried[best.options] = Tried(best, None, needs)

    def _measure(self, proposals: Sequence[Proposal]) -> bool:
        """Measures all of them in turn with one another; returns whether there was time for any."""
        first = len(self._tried.keys() - {one.options for one in proposals})
        plans = {f"predicted {first + i + 1}": one.plan for i, one in enumerate(proposals)}
        try:
            steps = audit(self.campaign, plans)
        except OutOfTime:
            return False
        if all(steps[name].left_out for name in plans):
            return False
        self._waves += 1
        for name, proposal in zip(plans, proposals, strict=True):
            tried = Tried(proposal, steps[name], steps[name].memory_bytes, self._waves)
            self._tried[proposal.options] = tried
        return True

    def _missed(self, found: Sequence[Proposal]) -> int:
        """Returns by how much the proposed plans need more than the search counts; it is negative
        where they need less."""
        telling = self._telling(found)
        return 0 if telling is None else telling.missed_bytes

    def _telling(self, found: Sequence[Proposal]) -> Tried | None:
        """Returns the plan that tells what the others may need: of the proposed ones that exceed
        the limit the one that the search is most wrong about or, where none does, the first."""
        tried = [self._tried[one.options] for one in found if one.options in self._tried]
        known = [one for one in tried if one.memory_bytes is not None]
        limit = math.inf if self.limit is None else self.limit
        over = [one for one in known if (one.memory_bytes or 0) > limit]
        return max(over, key=lambda tried: tried.missed_bytes, default=next(iter(known), None))

    def _nothing_fits(self) -> CfpError:
        """Says what would."""
        failed = [t.step.failed for t in self._tried.values() if t.step and t.step.failed]
        found = self._smallest()
        if not found:
            return CfpError(
                "The measurements do not make a plan yet: some segment or resharding has none that "
                "runs. Raise `budget`; what was measured is kept."
            )
        if self.limit is None:
            return CfpError(f"None of the plans runs: {failed[0] if failed else 'no reason given'}")
        smallest = found[0]
        tried = self._tried.get(smallest.options)
        needs = None if tried is None else tried.memory_bytes
        if needs is None:
            needs = smallest.counting(self._beyond_bytes).predicted_bytes
        missing = self.proposals.profile.missing
        ways = "Raise memory_limit or use more devices"
        if missing:
            ways = f"The budget ended before all was measured ({', '.join(missing)}). Raise budget"
            ways += " or memory_limit, or use more devices"
        if not self.proposals.analysis.graph.donated:
            ways += ", or let the step donate its state (jax.jit(step, donate_argnums=...))"
        return CfpError(
            f"No plan fits {bytes_text(self.limit)} per device: the smallest needs "
            f"{bytes_text(needs)} ({self.proposals.show(smallest.point)}). {ways}."
        )

    def _unchecked(self, best: Tried, confirmed: Sequence[MeasuredStep]) -> list[str]:
        """Says what was not measured, or not on fresh rounds."""
        notes = []
        if self.limit is not None and best.memory_bytes is None:
            notes.append(
                "The budget ended before the compiler could say what memory the plan needs: "
                f"{bytes_text(best.proposal.predicted_bytes)} per device is predicted."
            )
        if not self.count:
            notes.append("No full step was run (audit=False): nothing checks the times.")
        elif best.step is None and not confirmed[0].ran:
            notes.append("The budget ended before full steps were run: nothing checks the times.")
        elif best.step is None or (self._out_of_time and len(self._tried) == 1):
            notes.append(
                "The budget ended before full steps were compared: the best prediction won."
            )
        elif confirmed[0].failed is not None:
            notes.append(f"On fresh rounds the plan does not run: {confirmed[0].failed}.")
        elif not confirmed[0].ran:
            notes.append(
                "The budget ended before the plan ran on fresh rounds: its time is of those it was "
                "chosen by, which flatter it."
            )
        missing = self.proposals.profile.missing
        if missing:
            notes.append(f"The budget ended before all was measured: {', '.join(missing)}.")
        if self.proposals.unmet:
            where = ", ".join(self.proposals.unmet)
            notes.append(
                f"No measured option lies as the pins of segments {where} ask: their resharding is "
                "not predicted."
            )
        return notes
