"""Decides for which options training state is also measured split further than the blocks split it.

Where memory counts, all finalists are measured so. Elsewhere the fastest is, and some others follow
only if it gains: replicated optimizer state is updated on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.ledger import Ledger
from cfp.profile.peak import needs_of, peak_bytes, shared_arguments
from cfp.profile.programs.kinds import Kind, Option

FINALISTS = 6  # options of a segment, the fastest; twice as many where all were measured. Where
# memory counts each takes two programs more
GAINING = 3  # of the finalists, where splitting state gains: each takes a program more


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
    """Returns whether the caller said so, or the fastest options of all segments, as far as they
    are known, need more than the limit at the peak of the step."""
    if scope.lean or scope.memory_limit_bytes is None:
        return scope.lean
    graph = analysis.graph
    donated = {graph.inputs[position] for position in graph.donated}
    shared = shared_arguments(ledger.crossings)
    needs = []
    for segment in analysis.segments:
        kind = ledger.kinds[segment.kind]
        ranked = ledger.ranked(kind)
        cost = ledger.cost(kind, ranked[0]) if ranked else None
        if cost is not None:
            found = needs_of(
                kind,
                [(cost.memory, ledger.layouts[kind.index][ranked[0]])],
                donated=donated,
                shared=shared.get(segment.index, ()),
                mesh_shape=analysis.mesh_shape,
            )
            needs.append(found)
    return peak_bytes(needs, [0] * len(needs)) > scope.memory_limit_bytes


def _measure(
    ledger: Ledger, kind: Kind, options: Sequence[Option], states: Sequence[State]
) -> None:
    """Measures options with their training state split further, except where nothing is left to
    split."""
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
    return replace(option, state=state)
