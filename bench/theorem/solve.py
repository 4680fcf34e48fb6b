"""The cheapest assignment, exactly.

    x[u,k] in {0,1}      node u is computed in way k               sum_k x[u,k] = 1
    z[b,i] in {0,1}      block b takes candidate i                 sum_i z[b,i] = 1
    g[v] >= 0            value v is gathered                       P n_v units
    a[v,t] >= 0          value v moves to split t                  n_v units

    minimise   sum price(u,k) x[u,k] + sum P n_v g[v] + sum n_v a[v,t]
    subject to, for every reader u of v and sharding t it may want, with made[v,s] the x of v's
    producer that deliver s and want[u,v,t] the x of u that ask for t:

        want[u,v,whole] <= made[v,whole] + g[v]
        want[u,v,t]     <= made[v,t] + made[v,whole] + g[v] + a[v,t]

    and, for every member u of block b and candidate i that allows it the ways A:

        sum of x[u,k in A] >= z[b,i],      x[u,k] <= sum of the z[b,i] that allow k

With x and z whole numbers, g and a are too. The space of operators is the same program without
z. The result is priced again by `problem.price`, and a solver's claim of optimality within less
than one unit makes the integer optimum exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from bench.theorem.problem import Problem, price, respects_blocks, respects_pins
from bench.theorem.ways import Sharding


@dataclass(frozen=True, slots=True)
class Solution:
    units: int
    assignment: tuple[int, ...]


class NotSolvedError(RuntimeError):
    """The solver gave up (time limit) or found nothing."""


@dataclass(slots=True)
class _Program:
    """Columns and rows as they are added."""

    costs: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, dict[int, float]]] = field(default_factory=list)

    def column(self, cost: float, *, whole: bool) -> int:
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1

    def one(self, columns: Sequence[int]) -> None:
        self.rows.append((1.0, 1.0, dict.fromkeys(columns, 1.0)))

    def at_most(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Adds the constraint that the sum of left is at most the sum of right."""
        row = dict.fromkeys(right, 1.0)
        for column in left:
            row[column] = row.get(column, 0.0) - 1.0
        self.rows.append((0.0, math.inf, row))


def solve(problem: Problem, *, blocks: bool, time_limit_s: float = 120.0) -> Solution:
    """Returns the optimum, within the blocks' space or over all assignments."""
    program, choices = _program(problem, blocks=blocks)
    values = _run(program, _scale(problem), time_limit_s)
    assignment = tuple(max(columns, key=lambda c: values[c]) - columns[0] for columns in choices)
    if not _possible(problem, assignment, blocks=blocks):
        raise NotSolvedError("the solver's assignment leaves the space")
    return Solution(price(problem, assignment), assignment)


def enumerate_all(problem: Problem, *, blocks: bool) -> Solution:
    """Returns the optimum by trying every assignment (tiny problems)."""
    best: Solution | None = None
    for assignment in itertools.product(*(range(len(node.ways)) for node in problem.nodes)):
        if not _possible(problem, assignment, blocks=blocks):
            continue
        units = price(problem, assignment)
        if best is None or units < best.units:
            best = Solution(units, assignment)
    if best is None:
        raise NotSolvedError("no assignment is possible")
    return best


def _possible(problem: Problem, assignment: Sequence[int], *, blocks: bool) -> bool:
    if not respects_pins(problem, assignment):
        return False
    return not blocks or respects_blocks(problem, assignment)


def _program(problem: Problem, *, blocks: bool) -> tuple[_Program, list[list[int]]]:
    program = _Program()
    choices = [
        [program.column(way.price, whole=True) for way in node.ways] for node in problem.nodes
    ]
    for columns in choices:
        program.one(columns)
    for pinned, allowed in problem.pinned.items():
        program.one([choices[pinned][k] for k in sorted(allowed)])
    readers = problem.readers()
    gathers: dict[int, int] = {}
    moves: dict[tuple[int, int], int] = {}
    for value, (node, result) in problem.producers().items():
        made = _by_sharding(
            choices[node], [way.results[result] for way in problem.nodes[node].ways]
        )
        for reader, operand in readers.get(value, ()):
            ways = problem.nodes[reader].ways
            wants = _by_sharding(choices[reader], [way.operands[operand] for way in ways])
            for sharding, columns in wants.items():
                _read(program, problem, value, sharding, columns, made, gathers, moves)
    if blocks:
        _bind(program, problem, choices)
    return program, choices


def _by_sharding(
    columns: Sequence[int], shardings: Sequence[Sharding]
) -> dict[Sharding, list[int]]:
    found: dict[Sharding, list[int]] = {}
    for column, sharding in zip(columns, shardings, strict=True):
        found.setdefault(sharding, []).append(column)
    return found


def _read(
    program: _Program,
    problem: Problem,
    value: int,
    sharding: Sharding,
    wanting: Sequence[int],
    made: Mapping[Sharding, list[int]],
    gathers: dict[int, int],
    moves: dict[tuple[int, int], int],
) -> None:
    units = problem.moved[value]
    supply = list(made.get(None, ()))
    if set(made) - {None}:
        if value not in gathers:
            gathers[value] = program.column(units * problem.parts, whole=False)
        supply.append(gathers[value])
    if sharding is not None:
        supply += made.get(sharding, ())
        if set(made) - {None, sharding}:
            if (value, sharding) not in moves:
                moves[value, sharding] = program.column(units, whole=False)
            supply.append(moves[value, sharding])
    program.at_most(wanting, supply)


def _bind(program: _Program, problem: Problem, choices: list[list[int]]) -> None:
    for block in problem.bound:
        candidates = [program.column(0.0, whole=True) for _ in block.allowed]
        program.one(candidates)
        for node in dict.fromkeys(itertools.chain(*block.allowed)):
            columns = choices[node]
            ways = [allowed.get(node, frozenset(range(len(columns)))) for allowed in block.allowed]
            for candidate, allowed in zip(candidates, ways, strict=True):
                program.at_most([candidate], [columns[k] for k in sorted(allowed)])
            for k, column in enumerate(columns):
                fitting = [c for c, allowed in zip(candidates, ways, strict=True) if k in allowed]
                program.at_most([column], fitting)


def _scale(problem: Problem) -> int:
    """Returns the greatest common divisor of all prices: divided by it, they are small integers."""
    prices = [way.price for node in problem.nodes for way in node.ways]
    return math.gcd(*prices, *problem.moved.values()) or 1


def _run(program: _Program, scale: int, time_limit_s: float) -> list[float]:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.costs), len(program.rows)
    lp.col_cost_ = np.array(program.costs) / scale
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.array([1.0 if whole else highspy.kHighsInf for whole in program.whole])
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
        for whole in program.whole
    ]
    lp.row_lower_ = np.array([low for low, _, _ in program.rows])
    lp.row_upper_ = np.array([high for _, high, _ in program.rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for _, _, row in program.rows)])
    lp.a_matrix_.index_ = np.array([c for _, _, row in program.rows for c in row])
    lp.a_matrix_.value_ = np.array([v for _, _, row in program.rows for v in row.values()])
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.5),
        ("time_limit", time_limit_s),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise NotSolvedError(str(solver.getModelStatus()))
    return list(solver.getSolution().col_value)
