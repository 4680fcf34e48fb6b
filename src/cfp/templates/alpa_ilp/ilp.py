"""The core by integer programming (Alpa's equation 1, its edge variables linearised).

    x[u,a] in {0,1}      node u takes way a                  sum_a x[u,a] = 1
    e[u,v,a,b] >= 0      u takes a and v takes b             sum_b e[u,v,a,b] = x[u,a]
                                                             sum_a e[u,v,a,b] = x[v,b]
    minimise   sum own[u,a] x[u,a]  +  sum cost[u,v,a,b] e[u,v,a,b]

With x whole numbers, e are too. A forbidden pair has no variable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import highspy
import numpy as np

from cfp.templates.alpa_ilp.eliminate import Core

_LARGEST = 1e6  # costs are scaled to at most this: solvers work to about nine digits


@dataclass(frozen=True, slots=True)
class CoreSolution:
    """The ways found; `ways` is None where there are none, or none in time."""

    ways: dict[int, int] | None
    gap: float
    optimal: bool
    variables: int


@dataclass(slots=True)
class _IntegerProgram:
    costs: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, dict[int, float]]] = field(default_factory=list)

    def column(self, cost: float, *, whole: bool) -> int:
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1


def solve_core(core: Core, time_limit_s: float) -> CoreSolution:
    if not core.nodes:
        return CoreSolution({}, 0.0, math.isfinite(core.constant), 0)
    program, columns = _program(core)
    model = _model(program)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-6),
        ("time_limit", time_limit_s),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if not found:
        return CoreSolution(None, math.inf, False, len(program.costs))
    values = solver.getSolution().col_value
    ways = {node: max(of, key=lambda way: float(values[of[way]])) for node, of in columns.items()}
    return CoreSolution(ways, 0.0 if optimal else float(info.mip_gap), optimal, len(program.costs))


def _program(core: Core) -> tuple[_IntegerProgram, dict[int, dict[int, int]]]:
    """Returns the program, and node -> way -> its column."""
    program = _IntegerProgram()
    columns: dict[int, dict[int, int]] = {}
    for node, costs in core.nodes.items():
        columns[node] = {
            way: program.column(float(cost), whole=True)
            for way, cost in enumerate(costs)
            if math.isfinite(cost)
        }
        program.rows.append((1.0, dict.fromkeys(columns[node].values(), 1.0)))
    for (i, j), table in core.edges.items():
        rows = {a: {column: -1.0} for a, column in columns[i].items()}
        cols = {b: {column: -1.0} for b, column in columns[j].items()}
        for a, row in rows.items():
            for b, col in cols.items():
                if math.isfinite(table[a, b]):
                    pair = program.column(float(table[a, b]), whole=False)
                    row[pair] = col[pair] = 1.0
        program.rows += [(0.0, row) for row in (*rows.values(), *cols.values())]
    return program, columns


def _model(program: _IntegerProgram) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    costs = np.array(program.costs)
    scale = max(1.0, float(np.abs(costs).max(initial=0.0)) / _LARGEST)
    lp.num_col_, lp.num_row_ = len(program.costs), len(program.rows)
    lp.col_cost_ = costs / scale
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.ones(lp.num_col_)
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
        for whole in program.whole
    ]
    lp.row_lower_ = lp.row_upper_ = np.array([equals for equals, _ in program.rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for _, row in program.rows)])
    lp.a_matrix_.index_ = np.array([c for _, row in program.rows for c in row])
    lp.a_matrix_.value_ = np.array([v for _, row in program.rows for v in row.values()])
    return lp
