"""Of which options training state is measured split further than the blocks split it.

Where memory counts, of all finalists. Else of the fastest, and of some others only if it gains:
replicated optimizer state is updated on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile.kinds import Kind, Option
from cfp.profile.ledger import Ledger
from cfp.profile.scope import Scope

FINALISTS = 6  # options of a segment, the fastest; twice as many where all were measured
GAINING = 3  # so many of them where it gains


def measure_states(ledger: Ledger, scope: Scope, *, thorough: bool) -> None:
    states = [state for state in scope.states if state is not State.BLOCK]
    if thorough:
        states = [State.ZERO1, State.FSDP]
    most = FINALISTS * (2 if scope.exhaustive else 1)
    for kind in ledger.kinds:
        finalists = ledger.ranked(kind)[:most]
        some = finalists if thorough else finalists[:1]
        _measure(ledger, kind, some, states)
        for state in states if not thorough else ():
            if finalists and _gains(ledger, kind, finalists[0], state):
                _measure(ledger, kind, finalists[1:GAINING], [state])


def memory_counts(analysis: Analysis, ledger: Ledger, scope: Scope) -> bool:
    """So it was said, or the fastest options of all segments together need more than the limit."""
    if scope.lean or scope.memory_limit_bytes is None:
        return scope.lean
    kept = scratch = 0
    copies = 1 if analysis.graph.donated else 2  # old and new training state at once
    for kind in ledger.kinds:
        ranked = ledger.ranked(kind)
        cost = ledger.cost(kind, ranked[0]) if ranked else None
        if cost is not None:
            happens = len(analysis.distinct_segments[kind.index].occurrences)
            stored = cost.memory.stored_bytes * (copies - 1)
            kept += (cost.memory.kept_bytes + stored) * happens
            scratch = max(scratch, cost.memory.scratch_bytes)
    return kept + scratch > scope.memory_limit_bytes


def _measure(
    ledger: Ledger, kind: Kind, options: Sequence[Option], states: Sequence[State]
) -> None:
    """Not those that leave everything as it lies: there may be nothing to split further."""
    wanted = []
    for option in options:
        known = [ledger.layouts[kind.index][option]]
        for state in states:
            found = kind.layouts(_with(option, state))
            if found not in known:
                known.append(found)
                wanted.append((kind, _with(option, state)))
    ledger.measure(wanted)


def _gains(ledger: Ledger, kind: Kind, option: Option, state: State) -> bool:
    before, after = ledger.cost(kind, option), ledger.cost(kind, _with(option, state))
    return before is not None and after is not None and after.time_s < before.time_s


def _with(option: Option, state: State) -> Option:
    return Option(option.combo, state)
