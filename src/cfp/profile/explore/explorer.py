"""Which strategy combinations of a segment to measure, and when to stop.

A segment of K blocks with S_j strategies has Π S_j combinations, and each one measured is a program
compiled. What the search needs is the fastest combination of each interface (what the neighbours
see), as far as it can compete with the fastest of all. So:

1. `covering`: every pair of strategies of every pair of interacting blocks is measured.
   With `counts` of what combinations send and compute these are a quarter of what is asked for,
   after what promises most: those expected to be fast first, and none expected to be hopeless.
2. `regress.fit`: block effects + pair effects + the rest, with their uncertainty, on top of what
   the counts let expect.
3. `Explorer.ask`: the combinations that promise most. With times in units of the best of all, t_c
   the best of x's interface c and a the share of the limit that is still ahead, x promises

       worth(x) = P(x runs) · (gain(x, 1 - tolerance) + a · exp(-(E t(x) - 1) / FADE) · gain(x, T))
       gain(x, T) = E[max(0, T - t(x))],   T = min((1 - tolerance) · t_c, COMPETITIVE).

   First every interface that can compete, at the end the best of all (`_worth`). A batch is picked
   one by one, each as if those before had taken what is predicted (`_promising`); batches get
   smaller towards the limit.
4. It ends when no combination promises `tolerance / PATIENCE` or more, or at the limit.

Large spaces are searched from the best known instead of being listed (`space`). Nothing here is
random from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from cfp.profile.explore import regress
from cfp.profile.explore.combos import Array, Combo, Points, Rows, combos_of
from cfp.profile.explore.covering import covering
from cfp.profile.explore.effects import Effects
from cfp.profile.explore.regress import Surrogate
from cfp.profile.explore.space import BEAM, CombinationSpace
from cfp.profile.measure.progress import Ahead

FITTED = 300  # measurements of a store that the model is fitted to: its time grows with the cube
# Replayed on 55 drawn segments (tests: `replay`), these take 31 programs each and lose 1.3 % on
# average at the interfaces that can compete.
COMPETITIVE = 1.5  # times the best: an interface that takes more is in no plan. 2 changes nothing
FADE = 0.1  # of the best time: slower by so much is worth e times less. At 0.05 1.8 % are lost
COVERING = 4  # where counts lead, one combination in so many covers pairs; the rest promise most
PATIENCE = 60.0  # a promise of so many times less than the tolerance ends it. At 30 1.5 % are lost;
# at 120 1.1 %, with 33 programs
AT_ONCE = 3  # a batch takes a third of what the limit leaves: the last are chosen best
SHORTLIST = 256  # combinations that a batch is picked from, one by one: all of most segments
EXACT = 16  # combinations, of those worth most, that are counted themselves: half a second or so
RECOUNTS = 4  # times at the most that this is done again where others then lead: two seconds
LEARNT = 8  # measurements from which on what counts let expect may rule combinations out: with
# fewer than there are rates to fit, they would be ruled out by chance


def default_limit(sizes: Sequence[int]) -> int:
    """Returns how many combinations are measured at most: two dozen or a third of the space; in a
    large space, a few for each strategy of each block."""
    space = math.prod(sizes)
    return min(space, max(24, math.ceil(space / 3)), max(24, 16 + 3 * sum(sizes)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a combination: nothing ran (None), it took `time_s`, or at least that."""

    time_s: float | None
    bound: bool

    @property
    def measured_s(self) -> float:
        return math.inf if self.time_s is None or self.bound else self.time_s


class Explorer:
    """Chooses what to measure: one asks for combinations and tells their times; at any moment
    `best` is the best told.

    `space` has the combinations there are. `pairs` are the blocks that hand tensors to one another
    (default: neighbours in order). With `axes` over 1 each block has that many of the space's
    `sizes` in a row, equal ones, and is itself a block per axis (factors.py). Every combination
    asked for must be told, failures as None.
    """

    def __init__(
        self,
        space: CombinationSpace,
        *,
        pairs: Sequence[tuple[int, int]] | None = None,
        axes: int = 1,
        limit: int | None = None,
        tolerance: float = 0.02,
    ) -> None:
        self.space = space
        self.sizes = space.sizes
        chain = [(i, i + 1) for i in range(len(self.sizes) - 1)]
        chosen = chain if pairs is None else [(min(p), max(p)) for p in pairs]
        self.effects = Effects(tuple(sorted(set(chosen))), axes)
        self.limit = default_limit(self.sizes) if limit is None else limit
        self.tolerance = tolerance
        self.reason: str | None = None
        self._told: dict[Combo, Outcome] = {}
        self._asked: dict[Combo, None] = {}
        self._covering = 0  # combinations asked for that cover pairs
        most = max(self.limit // 2, *self.sizes, 1)
        design = covering(self.sizes, self.effects.pairs, most)
        self._design = [combo for combo in design if self.space.exists(combo)]

    # -- what is known -------------------------------------------------------------------------

    @property
    def best(self) -> Combo | None:
        """Returns the fastest combination told."""
        return next(iter(self.best_by_interface.values()), None)

    @property
    def best_by_interface(self) -> dict[Hashable, Combo]:
        """Returns the fastest combination told of each interface, fastest first."""
        found: dict[Hashable, Combo] = {}
        times = sorted((told.measured_s, combo) for combo, told in self._told.items())
        for time_s, combo in times:
            if time_s < math.inf:
                found.setdefault(self.space.interface(combo), combo)
        return found

    @property
    def done(self) -> bool:
        return self.reason is not None

    def tell(self, combo: Combo, time_s: float | None, bound: bool = False) -> None:
        """Records that a combination took `time_s` seconds, or at least that (`bound`), or did not
        run (None)."""
        if combo not in self.space:
            raise ValueError(f"`combo` {combo} is not a combination of sizes {self.sizes}.")
        if time_s is not None and not 0 < time_s < math.inf:
            raise ValueError(f"`time_s` must be a positive number of seconds, not {time_s}.")
        self._asked.pop(combo, None)
        before = self._told.get(combo)
        if bound and before is not None and before.time_s is not None and time_s is not None:
            if not before.bound:
                return  # a measurement says more than a bound
            time_s = max(time_s, before.time_s)
        self._told[combo] = Outcome(time_s, bound and time_s is not None)
        self.space.exactly([combo])
        self.reason = None

    def predict(self, combos: Sequence[Combo]) -> tuple[Array, Array]:
        """Returns the expected seconds and their standard deviation, by what has been told."""
        model = self._fitted()
        if model is None:
            raise ValueError("Nothing that ran has been told yet: tell a time first.")
        mean, sd = model.relative(*model.moments(self.space.points(combos)))
        return mean * model.best_s, sd * model.best_s

    # -- what to measure -----------------------------------------------------------------------

    def ask(self, count: int) -> list[Combo]:
        """Returns up to `count` combinations to measure next; none when done, or until more is
        told."""
        self.reason = None
        out = len(self._told) + len(self._asked)
        room = self.space.size - out
        if self.best is not None or self._asked or not self._told:  # all failed: the limit waits
            room = min(room, self.limit - out)
        most = max(0, min(count, room))
        leads = self.space.counted and self.best is not None
        share = (out + most) // COVERING - self._covering if leads else most
        picks = self._uncovered(min(share, most))
        self._covering += len(picks)
        if len(picks) < most and (leads or 2 * len(self._told) >= len(self._design)):
            self._asked.update(dict.fromkeys(picks))
            some = math.ceil((room - len(picks)) / AT_ONCE)
            # first: a budget may end before the rest is measured
            picks = self._promising(min(count - len(picks), some)) + picks
        self._asked.update(dict.fromkeys(picks))
        if not picks and not self._asked:
            if len(self._told) == self.space.size:
                self.reason = "all measured"
            elif room <= 0:
                self.reason = "limit"
            else:
                self.reason = "nothing left is likely to be better"
        return picks

    def ahead(self) -> Ahead:
        """Returns how many combinations will still be asked for: the limit at most; at least what
        the design has yet to show, if few have been measured; none when done."""
        if self.done:
            return Ahead(0, 0)
        out = len(self._told) + len(self._asked)
        high = max(0, min(self.space.size, self.limit) - out)
        design = max(0, len(self._design) - out)
        return Ahead(high if self.space.size <= self.limit else min(design, high), high)

    def _uncovered(self, count: int) -> list[Combo]:
        """Returns combinations of the design with a pair that no known combination has. The cost of
        a block that is split differently on two axes is left to the model."""
        axes = self.effects.axes
        between = [(i, j) for i, j in self.effects.pairs if i // axes != j // axes]
        pairs = (*between, *((block, block) for block in range(len(self.sizes))))
        seen = {(p, c[p[0]], c[p[1]]) for c in (*self._told, *self._asked) for p in pairs}
        picks: list[Combo] = []
        for combo in self._hopeful_design():
            own = {(p, combo[p[0]], combo[p[1]]) for p in pairs}
            known = combo in self._told or combo in self._asked
            if len(picks) < count and not known and not own <= seen:
                picks.append(combo)
                seen |= own
        return picks

    def _hopeful_design(self) -> list[Combo]:
        """Returns the design ordered by what the counts let us expect, where there are any: the
        fastest first, and from `LEARNT` measurements on none that is hopelessly slow."""
        if not self.space.counted or self.best is None or not self._design:
            return self._design
        expected_s = regress.at_rates(self.space.points(self._design), self._rates())
        far = math.inf if len(self._told) < LEARNT else regress.FAR
        far_s = far * self._told[self.best].measured_s
        order = np.argsort(expected_s, kind="stable")
        return [self._design[i] for i in order if expected_s[i] <= far_s]

    def _promising(self, count: int) -> list[Combo]:
        """Returns the combinations worth most, one after the other."""
        model = self._fitted()
        points, labels = self._candidates(model)
        near, bad = self._sorted()
        known = self.space.points([*near, *bad])
        ran = np.arange(len(known.rows)) < len(near)
        chance = regress.feasibility(known, ran, points, self.effects)
        if model is None:  # nothing has run: what is least like that which failed
            order = np.argsort(-chance, kind="stable")[:count]
            return list(combos_of(points.rows[order]))
        if self._asked:
            model = model.believing(self.space.points(list(self._asked)))
        incumbents = self._incumbents(model)
        for _ in range(RECOUNTS):
            worth = self._worth(model, points, labels, incumbents) * chance
            keep = np.argsort(-worth, kind="stable")[:SHORTLIST]
            if not self.space.exactly(combos_of(points.rows[keep[:EXACT]])):
                break
            points = self.space.points(points.rows)
        points, labels, chance = points.take(keep), labels[keep], chance[keep]
        picks: list[Combo] = []
        while len(picks) < count and len(points.rows):
            worth = self._worth(model, points, labels, incumbents) * chance
            pick = int(np.argmax(worth))
            if worth[pick] < self.tolerance / PATIENCE:
                break
            picks += combos_of(points.rows[pick : pick + 1])
            model = model.believing(points.take(np.array([pick])))
            rest = np.flatnonzero(np.arange(len(chance)) != pick)
            points, labels, chance = points.take(rest), labels[rest], chance[rest]
        return picks

    def _worth(self, model: Surrogate, points: Points, labels: Rows, incumbents: Array) -> Array:
        """Returns what measuring each point promises, as a share of the best time."""
        ahead = 1 - min(1.0, (len(self._told) + len(self._asked)) / self.limit)
        target = np.minimum(incumbents[labels] * (1 - self.tolerance), COMPETITIVE)
        moments = model.moments(points)
        mean, _ = model.relative(*moments)
        fading = ahead * np.exp(-np.maximum(mean - 1, 0) / FADE)
        anywhere = model.gain(*moments, np.full(len(mean), 1 - self.tolerance))
        return anywhere + fading * model.gain(*moments, target)

    def _incumbents(self, model: Surrogate) -> Array:
        """Returns the best time of each interface over the best of all; infinite where none is
        known."""
        best = np.full(self.space.labels + len(self._told), np.inf)
        for combo, told in self._told.items():
            label = self.space.label(combo)
            best[label] = min(best[label], told.measured_s / model.best_s)
        return best

    # -- what to expect ------------------------------------------------------------------------

    def _sorted(self) -> tuple[list[Combo], list[Combo]]:
        """Returns what ran, fastest first, and what failed or is hopelessly slow."""
        far_s = regress.FAR * min((t.measured_s for t in self._told.values()), default=math.inf)
        cost = {combo: told.time_s or math.inf for combo, told in self._told.items()}
        near = [combo for combo, time_s in cost.items() if time_s <= far_s and time_s < math.inf]
        bad = [combo for combo, time_s in cost.items() if time_s > far_s or time_s == math.inf]
        return sorted(near, key=lambda combo: (cost[combo], combo))[:FITTED], bad[:FITTED]

    def _fitted(self) -> Surrogate | None:
        near, _ = self._sorted()
        if not near:
            return None
        told = [self._told[combo] for combo in near]
        times_s = np.array([t.time_s for t in told], dtype=np.float64)
        points = self.space.points(near)
        bounded = np.array([t.bound for t in told])
        return regress.fit(points, times_s, bounded, self.effects, self._rates())

    def _rates(self) -> Array:
        ran = {c: told.time_s for c, told in self._told.items() if told.time_s is not None}
        points = self.space.points(list(ran))
        return regress.fit_rates(points.counts, np.array(list(ran.values())))

    def _candidates(self, model: Surrogate | None) -> tuple[Points, Rows]:
        """Returns what may be asked for, and the number of its interface."""
        starts = [*self.best_by_interface.values()][:BEAM] + self._sorted()[0][:BEAM]
        points, labels = self.space.candidates(model, starts, seed=len(self._told))
        known = {*self._told, *self._asked}
        free = np.array([combo not in known for combo in combos_of(points.rows)])
        return points.take(np.flatnonzero(free)), labels[free]
