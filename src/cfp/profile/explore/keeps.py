"""Which options are measured keeping less, or more, for the backward pass than the step does.

Less, where memory may bind; more, where the step computes things again itself (`jax.checkpoint`):
then keeping them may be faster. In both cases only of the options of the leading plans, those that
a search in what was measured so far finds: what is in none of these is in no plan that computes
something again either, since that takes longer. A level is measured where it keeps clearly less
than the level before it. A step's own `jax.checkpoint` is no such level: XLA's compiler for CPUs
undoes it outside of loops, and then only our own levels save memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cfp.profile.explore.scope import Recompute
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.memory import held_bytes
from cfp.profile.measure.outlook import Ahead
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep

CLEARLY_LESS = 0.9  # of the bytes that are kept: what saves less is not worth a program, since the
# compiler's own temporaries vary by as much
NEAR = 0.9  # of the memory limit, from which on it may bind: most predictions are off by less
MOST = 3  # options of a kind, those of most of the leading plans: each takes two programs or so


@dataclass(frozen=True, slots=True)
class Leading:
    """The options of the leading plans, by kind, each as the step keeps things by itself; `binds`
    says that memory may decide which plan is best. `first` are the options of the fastest plan
    that fits, or of the smallest, as that plan has them."""

    options: Mapping[int, Sequence[Option]]
    binds: bool
    first: Mapping[int, Sequence[Option]]


def measure_keeps(ledger: Ledger, leading: Leading, recompute: Recompute) -> bool:
    """Measures the levels of the leading options; returns whether there was any left to measure."""
    wanted = []
    for kind in ledger.kinds:
        for option in leading.options.get(kind.index, ()):
            if option.keep is Keep.AS_WRITTEN:
                wanted += [
                    (kind, one)
                    for one in _worthwhile(kind, option, leading.binds, recompute)
                    if one not in ledger.requests[kind.index]
                ]
    ledger.measure(wanted)
    return bool(wanted)


def keeps_ahead(kind: Kind, option: Option, binds: bool, recompute: Recompute) -> Ahead:
    """Returns how many levels of a kind will be measured, if its leading options have as many as
    this one: at least those of one, at most those of `MOST`."""
    if recompute is Recompute.AS_WRITTEN:
        return Ahead(0, 0)
    count = sum(1 for _ in _worthwhile(kind, option, binds, recompute))
    return Ahead(count, MOST * count)


def may_keep_more(kind: Kind) -> bool:
    """Returns whether the step itself computes something of the kind again."""
    return Keep.ALL in kind.levels


def allowed(kind: Kind, option: Option, recompute: Recompute) -> bool:
    """Returns whether a plan may have the option."""
    if recompute is not Recompute.NONE:
        return True
    return option.keep is (Keep.ALL if may_keep_more(kind) else Keep.AS_WRITTEN)


def _worthwhile(kind: Kind, option: Option, binds: bool, recompute: Recompute) -> Iterator[Option]:
    extract = kind.extracts[0]
    levels = kind.levels
    most = option
    if Keep.ALL in levels and recompute is not Recompute.AS_WRITTEN:
        most = replace(option, keep=Keep.ALL)  # a compiler may make that of the step as written
        yield most
    if not binds or recompute is not Recompute.AUTO:
        return
    least = held_bytes(extract, kind.layouts(most)[0])
    for keep in (Keep.CONTRACTIONS, Keep.INPUTS):
        if keep in levels:
            one = replace(option, keep=keep)
            held = held_bytes(extract, kind.layouts(one)[0])
            if held <= CLEARLY_LESS * least:
                least = held
                yield one
