"""Decides for which options training state is also measured split further than the blocks split it.

Where memory counts, all finalists are measured so. Elsewhere time may gain, because replicated
optimizer state is updated on every device: the fastest option is measured, and among those nearly
as fast the one with most state on a device, which gains most. Others follow only if the fastest
gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile.explore.scope import Scope
from cfp.profile.measure.ledger import Ledger
from cfp.profile.peak import besides_bytes, needs_of, peak_bytes, shared_arguments
from cfp.profile.programs.kinds import Kind, Option

FINALISTS = 6  # options of a segment, the fastest; twice as many where all were measured. Where
# memory counts each takes two programs more
NEARLY = 1.25  # times the fastest: a layer of LLaMA on four CPUs gains a sixth of its time
GAINING = 3  # of the finalists, where splitting state gains: each takes a program more


def measure_states(ledger: Ledger, scope: Scope, *, thorough: bool) -> None:
    states = [state for state in scope.states if state is not State.BLOCK]
    if thorough:
        states = [State.ZERO1, State.FSDP]
    finalists = [(kind, ledger.ranked(kind)[: finalists_of(scope)]) for kind in ledger.kinds]
    first = finalists
    if not thorough:
        first = [(kind, _fastest_and_largest(ledger, kind, some)) for kind, some in finalists]
    _measure(ledger, first, states)
    for state in states if not thorough else ():
        gaining = [(kind, some) for kind, some in finalists if _gains(ledger, kind, some, state)]
        _measure(ledger, [(kind, some[1:GAINING]) for kind, some in gaining], [state])


def _fastest_and_largest(ledger: Ledger, kind: Kind, finalists: list[Option]) -> list[Option]:
    """Returns the fastest option, and the one with most training state on a device among those that
    are nearly as fast, if that is another."""
    costs = {option: ledger.cost(kind, option) for option in finalists}
    known = {option: cost for option, cost in costs.items() if cost is not None}
    if not known:
        return finalists[:1]
    fastest = finalists[0]
    within_s = NEARLY * min(cost.time_s for cost in known.values())
    largest = max(
        (option for option, cost in known.items() if cost.time_s <= within_s),
        key=lambda option: (known[option].memory.stored_bytes, option == fastest),
    )
    return [fastest] if largest == fastest else [fastest, largest]


def finalists_of(scope: Scope) -> int:
    """Returns how many options of a segment are finalists."""
    return FINALISTS * (2 if scope.exhaustive else 1)


def memory_counts(analysis: Analysis, ledger: Ledger, scope: Scope) -> bool:
    """Returns whether the caller said so, or the fastest options of all segments, as far as they
    are known, need more than the limit at the peak of the step."""
    if scope.lean or scope.memory_limit_bytes is None:
        return scope.lean
    return fastest_peak_bytes(analysis, ledger) > scope.memory_limit_bytes


def fastest_peak_bytes(analysis: Analysis, ledger: Ledger) -> float:
    """Returns what the fastest options of all segments need at the peak of the step, as far as they
    are known."""
    graph = analysis.graph
    donated = {graph.inputs[position] for position in graph.donated}
    shared = shared_arguments(ledger.interfaces.crossings)
    fastest = [next(iter(ledger.ranked(kind)), None) for kind in ledger.kinds]
    needs = []
    for segment in analysis.segments:
        kind, option = ledger.kinds[segment.kind], fastest[segment.kind]
        cost = None if option is None else ledger.cost(kind, option)
        if option is not None and cost is not None:
            found = needs_of(
                kind,
                [(cost.memory, ledger.layouts[kind.index][option])],
                donated=donated,
                shared=shared.get(segment.index, ()),
                mesh_shape=analysis.mesh_shape,
            )
            needs.append(found)
    besides = besides_bytes(analysis, ledger.interfaces.homes)
    return peak_bytes(needs, [0] * len(needs)) + besides


def _measure(
    ledger: Ledger, options: Sequence[tuple[Kind, Sequence[Option]]], states: Sequence[State]
) -> None:
    """Measures options with their training state split further, except where nothing is left to
    split."""
    wanted = []
    for kind, some in options:
        for option in some:
            known = [ledger.layouts[kind.index][option]]
            for state in states:
                found = kind.layouts(_with(option, state))
                if found not in known:
                    known.append(found)
                    wanted.append((kind, _with(option, state)))
    ledger.measure(wanted)


def _gains(ledger: Ledger, kind: Kind, finalists: Sequence[Option], state: State) -> bool:
    """Returns whether the fastest option is faster with its state split further."""
    if not finalists:
        return False
    before, after = (ledger.cost(kind, o) for o in (finalists[0], _with(finalists[0], state)))
    return before is not None and after is not None and after.time_s < before.time_s


def _with(option: Option, state: State) -> Option:
    return replace(option, state=state)
