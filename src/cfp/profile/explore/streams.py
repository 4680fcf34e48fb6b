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
    for kind in ledger.kinds:
        fastest = ledger.ranked(kind)
        some = [option for option in fastest if split_streams(kind, option)][:SOME]
        if not some:
            continue
        if thorough or scope.exhaustive:
            found = _measure(ledger, kind, some)
        elif _is_near(ledger, kind, some[0], fastest[0]) and _writes_less(kind, some[0]):
            found = _measure(ledger, kind, some[:1])
            if any(_time_s(ledger, kind, o) < _time_s(ledger, kind, some[0]) for o in found):
                _measure(ledger, kind, some[1:])
        if thorough and found:
            best = min(found, key=lambda option: _time_s(ledger, kind, option))
            further = [replace(best, state=state) for state in State if state is not State.BLOCK]
            ledger.measure((kind, option) for option in further)


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


def _measure(ledger: Ledger, kind: Kind, options: list[Option]) -> list[Option]:
    """Measures options with their streams split along all axes that can, except where they lie as
    something measured before; returns those that run."""
    wanted: list[Option] = []
    known = [ledger.layouts[kind.index][option] for option in ledger.requests[kind.index]]
    for option in options:
        split = split_streams(kind, option)[0]
        layouts = kind.layouts(split)
        if layouts not in known:
            known.append(layouts)
            wanted.append(split)
    ledger.measure((kind, option) for option in wanted)
    return [option for option in wanted if ledger.cost(kind, option) is not None]


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
