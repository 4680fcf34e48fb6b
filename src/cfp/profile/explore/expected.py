"""What options are expected to need and to take before they are measured.

Where memory decides, an option may also have its streams or its training state split further, keep
less for the backward pass, or several of these: a *saving*. There are many times more options with
savings than can be measured. Each is expected to be as the measured option it is made of, but for

    memory   parameters and optimizer state are divided as its layouts say, and it keeps for the
             backward pass what they say
    both     what the saving was seen to add to that, in time and in memory: the least of all
             options of the kind that were measured with it. Where it was with none, what its parts
             add together

What was never seen is expected to add next to nothing, but keeping less takes no less time than
keeping more. So expectations are low: the fastest plan by them either has options worth measuring,
or was measured throughout, and then none of the others is expected to be faster. `profiler`
measures until that is so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cfp.layouts import Layouts
from cfp.layouts.state import State
from cfp.profile.explore.keeps import less_kept
from cfp.profile.explore.scope import Recompute, Scope
from cfp.profile.explore.states import finalists_of
from cfp.profile.explore.streams import split_streams
from cfp.profile.measure.costs import Cost, elsewhere
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.memory import MemoryUse, held_bytes, stored_bytes
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep

AGAIN = 1e-3  # of an option's time: computing something again takes some, and computing more again
# more, so that of two levels that fit the one that keeps more is measured first
LEVELS = (Keep.AS_WRITTEN, Keep.CONTRACTIONS, Keep.INPUTS)  # each computes more again


@dataclass(frozen=True, slots=True)
class Saving:
    """How an option is made of one that only splits blocks."""

    streams: bool = False
    state: State = State.BLOCK
    keep: Keep = Keep.AS_WRITTEN

    def parts(self) -> list[Saving]:
        """Returns the savings that this one consists of, each of which does one thing."""
        found = [Saving(streams=self.streams), Saving(state=self.state), Saving(keep=self.keep)]
        return [one for one in found if one != Saving()]


@dataclass(frozen=True, slots=True)
class More:
    """What a saving adds: seconds, and bytes beside those that follow from the layouts."""

    time_s: float
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Options of a kind that were not measured, with what is expected of them."""

    costs: Mapping[Option, Cost]
    layouts: Mapping[Option, tuple[Layouts, ...]]


class Expectations:
    """`of` returns what is expected, by what was measured so far."""

    def __init__(self, ledger: Ledger, scope: Scope) -> None:
        self._ledger = ledger
        self._scope = scope
        self._layouts: list[dict[Option, tuple[Layouts, ...]]] = [{} for _ in ledger.kinds]

    def of(self, kind: Kind) -> Expected:
        bases = [one for one in self._ledger.ranked(kind) if not kind.has_streams(one)]
        bases = bases[: finalists_of(self._scope)]
        made = {base: dict(self._savings(kind, base)) for base in bases}
        seen = self._seen(kind, made)
        costs = {}
        for base, savings in made.items():
            cost = self._ledger.cost(kind, base)
            assert cost is not None  # it was ranked
            for option, saving in savings.items():
                if option not in self._ledger.requests[kind.index]:
                    more = seen.get(saving) or _sum(cost, saving, seen)
                    costs[option] = _plus(cost, self._use(kind, base, option, cost.memory), more)
        return Expected(costs, {option: self._lies(kind, option) for option in costs})

    def _savings(self, kind: Kind, base: Option) -> Iterator[tuple[Option, Saving]]:
        """Yields what can be made of an option; what lies as something before it is left out."""
        known = [self._lies(kind, base)]
        less = self._scope.recompute is Recompute.AUTO
        for split in (base, *split_streams(kind, base)[:1]):
            levels = (Keep.AS_WRITTEN, *less_kept(kind, split)) if less else (Keep.AS_WRITTEN,)
            for state, keep in itertools.product(State, levels):
                option = replace(split, state=state, keep=keep)
                if option != base and (lies := self._lies(kind, option)) not in known:
                    known.append(lies)
                    yield option, Saving(split != base, state, keep)

    def _seen(
        self, kind: Kind, made: Mapping[Option, Mapping[Option, Saving]]
    ) -> dict[Saving, More]:
        """Returns what savings add at the least, of those that were measured."""
        found: dict[Saving, More] = {}
        for base, savings in made.items():
            before = self._ledger.cost(kind, base)
            for option, saving in savings.items():
                after = self._ledger.cost(kind, option)
                if before is not None and after is not None:
                    use = self._use(kind, base, option, before.memory)
                    more = More(
                        after.time_s - before.time_s,
                        after.memory.total_bytes - use.total_bytes,
                    )
                    least = found.get(saving, more)
                    found[saving] = More(
                        min(more.time_s, least.time_s),
                        min(more.scratch_bytes, least.scratch_bytes),
                    )
        return found

    def _use(self, kind: Kind, base: Option, option: Option, use: MemoryUse) -> MemoryUse:
        """Returns what an option needs by its layouts, made of a base that needs `use`. A compiler
        may keep less than the graph says, of split streams as well; what is computed again it does
        not keep."""
        before, after = self._lies(kind, base), self._lies(kind, option)
        parameters = state = 0
        for i, (cut, known) in enumerate(zip(kind.extracts, elsewhere(kind), strict=True)):
            was, now = (stored_bytes(cut, lies[i], known) for lies in (before, after))
            parameters += now[0] - was[0]
            state += now[1] - was[1]
        activations = use.activation_bytes
        plain = replace(option, state=base.state, keep=base.keep)
        if plain != base:
            activations = activations * self._held(kind, plain) // max(self._held(kind, base), 1)
        if option.keep is base.keep:
            activations += self._held(kind, option) - self._held(kind, plain)
        else:
            activations = min(activations, self._held(kind, option))
        return replace(
            use,
            parameter_bytes=use.parameter_bytes + parameters,
            state_bytes=use.state_bytes + state,
            activation_bytes=activations,
            total_bytes=use.total_bytes + parameters + state + activations - use.activation_bytes,
        )

    def _held(self, kind: Kind, option: Option) -> int:
        """Returns what the graph says is kept, by all iterations of a loop."""
        cut = kind.extracts[0]
        times = 1 if cut.iteration is None else cut.iteration.kept
        return times * held_bytes(cut, self._lies(kind, option)[0])

    def _lies(self, kind: Kind, option: Option) -> tuple[Layouts, ...]:
        known = self._layouts[kind.index]
        if option not in known:
            known[option] = kind.layouts(option)
        return known[option]


def _sum(cost: Cost, saving: Saving, seen: Mapping[Saving, More]) -> More:
    """Returns what the parts of a saving add together."""
    time_s, scratch_bytes = 0.0, 0
    for part in saving.parts():
        more = seen.get(part) or More(_again_s(cost, part.keep, seen), 0)
        time_s += more.time_s
        scratch_bytes += more.scratch_bytes
    return More(time_s, scratch_bytes)


def _again_s(cost: Cost, keep: Keep, seen: Mapping[Saving, More]) -> float:
    """Returns what a level adds that was not seen."""
    again_s = 0.0
    for level in LEVELS[1 : LEVELS.index(keep) + 1]:
        known = seen.get(Saving(keep=level))
        again_s = AGAIN * cost.time_s + (again_s if known is None else max(known.time_s, again_s))
    return again_s


def _plus(cost: Cost, use: MemoryUse, more: More) -> Cost:
    scratch = max(use.scratch_bytes + more.scratch_bytes, 0)
    total = use.total_bytes + scratch - use.scratch_bytes
    time_s = max(cost.time_s + more.time_s, 0.0)
    memory = replace(use, scratch_bytes=scratch, total_bytes=total)
    return Cost(time_s, time_s, cost.spread_s, None, memory, rough=True)
