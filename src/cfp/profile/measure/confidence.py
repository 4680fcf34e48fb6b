"""How sure a median is, and what may be said of two programs that ran in turn.

The median of n runs lies between the k-th smallest and the k-th largest of them. It lies beyond
either one with a probability of P(Binomial(n, 1/2) < k) at most, whatever the runs are distributed
like; `median_interval` takes the largest k for which that is rare enough.

Two programs are judged by the ratios of their times, round by round, so that what slows a round
down cancels out (`judge`). With [low, high] the interval of the median ratio, each end of which is
wrong one time in twenty at most:

    faster            high < 1
    slower            low > 1
    tie               neither, and 1 / 1.05 < low and high < 1.05
    not told apart    anything else

Times that were replayed have no rounds in common: their runs are the host's. They are judged by
the replays themselves, which are known up to the error of the links and of recorded kernels; two
that differ by less are level (`judge_replays`).

`faster` and `slower` are one-sided sign tests at 5 %. A tie is what two of them show (TOST): one
rejects that the program is slower by 5 % or more, the other that it is faster by as much. Being of
ranks, they are the same for ratios and their logarithms. So a lack of evidence is never a tie, and
who loses seven of eight rounds is slower.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SURE = 0.95  # how sure it is that a median is in the interval shown beside it
ERROR = 0.05  # how often one end of a ratio's interval may be wrong
EQUIVALENT = 1.05  # the ratio up to which plans count as equally fast: worth no user's trouble
RECORDED = 0.01  # of a replay: recorded anew, the kernels of a whole step differed by 0.4 % (H200)
FEWEST = 5  # rounds that can show anything at `ERROR`: all of five are lost by chance 1 time in 32


class Verdict(enum.StrEnum):
    """What the rounds show of a program beside another."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    UNTOLD = "not told apart"
    LEVEL = "level"  # the error of two replays is larger


@dataclass(frozen=True, slots=True)
class Judgement:
    """The ratio of a program's times to another's, by the median of the rounds they share, and what
    that shows. `ratio` is None where they share no round, `low` and `high` where the rounds are too
    few to bound it."""

    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def median_interval(runs: Sequence[float]) -> tuple[float, float]:
    """Returns the interval in which the median lies with 95 % confidence. Fewer than six runs bound
    it with less; then it is all of them."""
    place = max(_rank(len(runs), (1 - SURE) / 2), 1) - 1
    ordered = sorted(runs)
    return ordered[place], ordered[len(runs) - 1 - place]


def ratios(runs: Sequence[float], others: Sequence[float]) -> list[float]:
    """Returns the ratios of two programs' times in the rounds that both ran in."""
    return [a / b for a, b in zip(runs, others, strict=False)]


def judge(runs: Sequence[float], others: Sequence[float]) -> Judgement:
    """Judges a program by its runs and another's, one of each round: whether it is faster."""
    found = sorted(ratios(runs, others))
    if not found:
        return Judgement(Verdict.UNTOLD)
    ratio, rank = statistics.median(found), _rank(len(found), ERROR)
    if rank == 0:
        return Judgement(Verdict.UNTOLD, ratio)
    low, high = found[rank - 1], found[-rank]
    if high < 1:
        verdict = Verdict.FASTER
    elif low > 1:
        verdict = Verdict.SLOWER
    elif low > 1 / EQUIVALENT and high < EQUIVALENT:
        verdict = Verdict.TIE
    else:
        verdict = Verdict.UNTOLD
    return Judgement(verdict, ratio, low, high)


def judge_replays(one_s: float, other_s: float, error_s: float) -> Judgement:
    """Judges a program by its replay and another's, with links that may change either by
    `error_s`."""
    off_s = error_s + RECORDED * max(one_s, other_s)
    low, high = (one_s - off_s) / other_s, (one_s + off_s) / other_s
    verdict = Verdict.FASTER if high < 1 else Verdict.SLOWER if low > 1 else Verdict.LEVEL
    return Judgement(verdict, one_s / other_s, low, high)


def _rank(count: int, error: float) -> int:
    """Returns the largest k with P(Binomial(count, 1/2) < k) <= error; 0 where that is none."""
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.comb(count, rank) / 2**count
        if below > error:
            break
        rank += 1
    return rank
