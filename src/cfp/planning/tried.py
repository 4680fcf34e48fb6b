"""Proposals that were tried: what is known of their steps, and which of them is the best.

Where others are as fast as the fastest, as far as the rounds tell, the best one is that which needs
least memory, if it is clearly less, and if the rounds show no other plan to be faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cfp.memory_size import bytes_text
from cfp.plan.evidence import MeasuredStep
from cfp.planning.proposals import Proposal
from cfp.profile.measure.confidence import EQUIVALENT, Verdict

CLEARLY_LESS = 0.9  # of the memory: what is worth a difference in time that nobody can measure


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of a proposal: its measured step, or the compiler's memory figure alone."""

    proposal: Proposal
    step: MeasuredStep | None
    memory_bytes: int | None
    wave: int = 0  # those of one ran in the same rounds

    @property
    def time_s(self) -> float:
        predicted = self.proposal.plan.predicted
        assert predicted is not None
        return predicted.time_s if self.step is None else self.step.time_s

    def fits(self, limit: int | None) -> bool:
        """Returns whether a step runs within the limit, by its prediction where the compiler was
        not asked."""
        if self.step is not None and not self.step.ran:
            return False
        needs = self.proposal.predicted_bytes if self.memory_bytes is None else self.memory_bytes
        return limit is None or needs <= limit

    @property
    def missed_bytes(self) -> int:
        """Returns by how much the step needs more than the search counts; 0 if that is not known.
        It is negative where it needs less."""
        if self.memory_bytes is None:
            return 0
        return self.memory_bytes - self.proposal.point.memory_bytes

    @property
    def beyond_bytes(self) -> int:
        """Returns what the step needs beyond what its segments add up to; 0 if it is not known."""
        if self.memory_bytes is None:
            return 0
        return self.memory_bytes - self.proposal.predicted_bytes + self.proposal.beyond_bytes


def best_of(fitting: Sequence[Tried]) -> tuple[Tried, Tried]:
    """Returns the best one of some that fit, and the fastest."""
    fastest = min(fitting, key=lambda tried: tried.time_s)
    as_fast = (tried for tried in fitting if _rather(tried, fastest))
    best = min(
        (fastest, *(tried for tried in as_fast if not _beaten(tried, fitting))),
        key=lambda tried: (tried.memory_bytes or 0, tried.time_s),
    )
    return best, fastest


def _rather(one: Tried, fastest: Tried) -> bool:
    """Returns whether a plan is as fast as the fastest, as far as the rounds tell, with clearly
    less memory. Rounds too few to tell are no reason to take one that seems slower by more."""
    if one.step is None or fastest.step is None or one.wave != fastest.wave:
        return False
    assert one.memory_bytes is not None
    assert fastest.memory_bytes is not None
    found = one.step.beside(fastest.step)
    near = found.ratio is not None and found.ratio <= EQUIVALENT
    return (
        found.verdict is not Verdict.SLOWER
        and near
        and one.memory_bytes <= CLEARLY_LESS * fastest.memory_bytes
    )


def _beaten(one: Tried, others: Sequence[Tried]) -> bool:
    """Returns whether the rounds of a plan show another one to be faster."""
    return any(
        one.step is not None
        and other.step is not None
        and one.wave == other.wave
        and other.step.beside(one.step).verdict is Verdict.FASTER
        for other in others
    )


def in_its_rounds(best: Tried, rest: Sequence[Tried]) -> Iterator[MeasuredStep]:
    """Yields the other steps; the runs of those that ran in other rounds are not to be compared."""
    for tried in rest:
        if tried.step is not None:
            yield tried.step if tried.wave == best.wave else replace(tried.step, runs_s=())


def taken_for_memory(best: Tried, fastest: Tried) -> Iterator[str]:
    """Says that the fastest was not taken, and why."""
    if best is not fastest:
        assert best.step is not None
        assert fastest.step is not None
        needs, other = best.step.memory_bytes, fastest.step.memory_bytes
        assert needs is not None
        assert other is not None
        yield (
            f"{fastest.step.name} seemed faster by {best.time_s / fastest.time_s - 1:.1%}, which "
            f"the rounds do not bear out, and needs {bytes_text(other)} on each device: this plan "
            f"needs {bytes_text(needs)}."
        )


def memory_beyond(beyond_bytes: int) -> Iterator[str]:
    """Says what predicted memory counts besides the segments."""
    if beyond_bytes:
        which = "more" if beyond_bytes > 0 else "less"
        yield (
            "The full step of an earlier proposal needs "
            f"{bytes_text(abs(beyond_bytes))} {which} on each device than its segments add up to: "
            "predicted memory counts that."
        )
