"""What Alpa's cost model says of a plan that is not its own.

The contractions are done as the plan's layouts say (of their ways those that ask for the same
operands, or for as many of them as there are); everything else as cheaply as Alpa knows how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cfp.layouts import Layouts
from cfp.templates.alpa_ilp.ledger import AlpaLedger
from cfp.templates.alpa_ilp.options import AlpaOptions
from cfp.templates.alpa_ilp.problem import price
from cfp.templates.alpa_ilp.solve import make_ledger, solve_problem
from cfp.templates.alpa_ilp.ways import is_contraction
from cfp.trace import Graph


def estimate_alpa(
    graph: Graph,
    mesh_shape: tuple[int, ...],
    layouts: Layouts,
    *,
    parameters: frozenset[int],
    feedback: Mapping[int, int] | None = None,
    time_limit_s: float = 60.0,
) -> float:
    """Returns the plan's communication in Alpa's units; the arguments are those of `solve_alpa`."""
    ledger = make_ledger(graph, mesh_shape, parameters, feedback or {}, AlpaOptions())
    for equation in graph.equations:
        if is_contraction(equation.op):
            _fix(ledger, layouts, equation.index)
    ways, _ = solve_problem(ledger.problem, time_limit_s)
    cost = price(ledger.problem, ways)
    return price(ledger.problem, ways, relent=True) if math.isinf(cost) else cost


def _fix(ledger: AlpaLedger, layouts: Layouts, equation: int) -> None:
    """Forbids the ways of a contraction that read its operands otherwise than the plan does."""
    asked = {operand: ways for (index, operand), ways in ledger.asked.items() if index == equation}
    node = ledger.node.get(ledger.graph.equations[equation].outputs[0])
    if node is None or not asked:
        return
    own = ledger.problem.own[node]
    agreeing = [
        sum(layouts.uses.get((equation, operand)) == ways[way] for operand, ways in asked.items())
        for way in range(len(own))
    ]
    for way, count in enumerate(agreeing):
        if count < max(agreeing):
            own[way] = math.inf
