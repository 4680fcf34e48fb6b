"""Keeping less, or more, for the backward pass than the step does, and what of it is measured.

Less, where memory decides: then the options of the plans that are expected to lead are measured
(`explore.expected`). A level counts only where it keeps clearly less than the level before it.
More, where the step computes things again itself (`jax.checkpoint`): then keeping them may be
faster, and the options of the fastest plan are measured so. A step's own `jax.checkpoint` is no
level that keeps less: XLA's compiler for CPUs undoes it outside of loops, and then only our own
levels save memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cfp.profile.explore.scope import Recompute
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.memory import held_bytes
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep

CLEARLY_LESS = 0.9  # of the bytes that are kept: what saves less is not worth a program, since the
# compiler's own temporaries vary by as much
NEAR = 0.9  # of the memory limit, from which on it may bind: most predictions are off by less
ROUNDS = 6  # that expectations are measured for: each has a few programs, and corrects them. Two to
# four were seen to settle what is fastest


@dataclass(frozen=True, slots=True)
class Leading:
    """The options of the leading plans, by kind; `binds` says that memory may decide which plan is
    best. `first` is the fastest plan that `fits`, or the smallest; where memory binds, `spare` is
    the one that would be if predictions of memory were a little too low."""

    binds: bool
    fits: bool
    first: Mapping[int, Sequence[Option]]
    spare: Mapping[int, Sequence[Option]]


def measure_leading(ledger: Ledger, leading: Leading, recompute: Recompute) -> bool:
    """Measures the options of the leading plans that are expected only, and what the first takes
    when it keeps more; returns whether there was any left to measure."""
    wanted: dict[tuple[int, Option], None] = {}
    for plan in (leading.first, leading.spare):
        wanted |= {(kind, option): None for kind, options in plan.items() for option in options}
    if recompute is not Recompute.AS_WRITTEN:
        for kind, options in leading.first.items():
            if may_keep_more(ledger.kinds[kind]):
                wanted |= {(kind, replace(option, keep=Keep.ALL)): None for option in options}
    new = [(ledger.kinds[k], o) for k, o in wanted if o not in ledger.requests[k]]
    ledger.measure(new)
    return bool(new)


def may_keep_more(kind: Kind) -> bool:
    """Returns whether the step itself computes something of the kind again."""
    return Keep.ALL in kind.levels


def allowed(kind: Kind, option: Option, recompute: Recompute) -> bool:
    """Returns whether a plan may have the option."""
    if recompute is not Recompute.NONE:
        return True
    return option.keep is (Keep.ALL if may_keep_more(kind) else Keep.AS_WRITTEN)


def less_kept(kind: Kind, option: Option) -> Iterator[Keep]:
    """Yields the levels at which an option keeps clearly less than at the one before."""
    levels = kind.levels
    most = replace(option, keep=Keep.ALL) if Keep.ALL in levels else option  # a compiler may undo
    # what the step computes again
    least = held_bytes(kind.extracts[0], kind.layouts(most)[0])
    for keep in (Keep.CONTRACTIONS, Keep.INPUTS):
        if keep in levels:
            held = held_bytes(kind.extracts[0], kind.layouts(replace(option, keep=keep))[0])
            if held <= CLEARLY_LESS * least:
                least = held
                yield keep
