"""This stage decides which options are also measured with their streams split.

A split stream sends what the option without it sends, or more where the compiler has no
reduce-scatter; it gains what lies between the blocks, in time and memory. So it is worth measuring
only next to options that are near the best, and all blocks of a segment take it together: a stream
that one block splits by rows, the others of the segment follow.

Where memory counts, the fastest few options that have streams to split are measured with them, and
the best of these with training state split further, too. Else the fastest of them is, if it is near
the best of all and a device writes clearly less (where a neighbour splits the batch, most of the
stream lies split already), and some others are only if it gains.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cfp.layouts.state import State
from cfp.profile.explore.counts import count_option
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.ledger import Ledger
from cfp.profile.programs.kinds import Kind, Option

NEAR = 1.1  # times the best: norms, residual adds and dropout, of which a split stream leaves a
# device its part, are of the order of a tenth of a layer; what is further behind does not catch up
WRITTEN = 0.95  # of the bytes that a device writes without split streams. With them a layer of GPT
# that is split as Megatron does writes 0.82, one that lies mostly split already 0.99
SOME = 3  # options of a segment whose streams are split where that gains, or where memory counts:
# each takes a program more


def measure_streams(ledger: Ledger, scope: Scope, *, thorough: bool) -> None:
    ranked = {kind.index: ledger.ranked(kind) for kind in ledger.kinds}
    some = [(k, [o for o in ranked[k.index] if split_streams(k, o)][:SOME]) for k in ledger.kinds]
    some = [(kind, options) for kind, options in some if options]
    if thorough or scope.exhaustive:
        found = _measure(ledger, some)
    else:
        near = [
            (kind, options)
            for kind, options in some
            if _is_near(ledger, kind, options[0], ranked[kind.index][0])
            and _writes_less(kind, options[0])
        ]
        found = _measure(ledger, [(kind, options[:1]) for kind, options in near])
        first_s = {kind.index: _time_s(ledger, kind, options[0]) for kind, options in near}
        gaining = {k.index for k, o in found if _time_s(ledger, k, o) < first_s[k.index]}
        _measure(ledger, [(kind, options[1:]) for kind, options in near if kind.index in gaining])
    if thorough:
        best: dict[int, tuple[Kind, Option]] = {}
        for kind, option in sorted(found, key=lambda one: _time_s(ledger, *one)):
            best.setdefault(kind.index, (kind, option))
        further = [state for state in State if state is not State.BLOCK]
        ledger.measure((k, replace(o, state=state)) for k, o in best.values() for state in further)


def split_streams(kind: Kind, option: Option) -> list[Option]:
    """Returns the option with its streams split: along all mesh axes that can, and along some of
    them."""
    axes = range(len(kind.mesh_shape))
    subsets = (itertools.combinations(axes, count) for count in range(len(axes), 0, -1))
    found: dict[Option, None] = {}
    for some in itertools.chain(*subsets):
        combo = list(option.combo)
        for i, strategy in enumerate(kind.chosen(option)):
            wanted = kind.extracts[0].blocks.blocks[i].with_streams(strategy, some)
            if wanted != strategy and wanted in kind.streams[i]:
                combo[i] = len(kind.strategies[i]) + kind.streams[i].index(wanted)
        if tuple(combo) != option.combo:
            found[replace(option, combo=tuple(combo))] = None
    return list(found)


def _measure(
    ledger: Ledger, options: Sequence[tuple[Kind, Sequence[Option]]]
) -> list[tuple[Kind, Option]]:
    """Measures options with their streams split along all axes that can, except where they lie as
    something measured before; returns those that run."""
    wanted: list[tuple[Kind, Option]] = []
    for kind, some in options:
        known = [ledger.layouts[kind.index][option] for option in ledger.requests[kind.index]]
        for option in some:
            split = split_streams(kind, option)[0]
            layouts = kind.layouts(split)
            if layouts not in known:
                known.append(layouts)
                wanted.append((kind, split))
    ledger.measure(wanted)
    return [(kind, option) for kind, option in wanted if ledger.cost(kind, option) is not None]


def _is_near(ledger: Ledger, kind: Kind, option: Option, best: Option) -> bool:
    return _time_s(ledger, kind, option) <= NEAR * _time_s(ledger, kind, best)


def _writes_less(kind: Kind, option: Option) -> bool:
    """Returns whether a device writes clearly less with the option's streams split, as counted."""
    before, after = (count_option(kind, o)[-1] for o in (option, split_streams(kind, option)[0]))
    return bool(after <= WRITTEN * before)


def _time_s(ledger: Ledger, kind: Kind, option: Option) -> float:
    cost = ledger.cost(kind, option)
    assert cost is not None  # it was ranked, or has run
    return cost.time_s
