"""What the solver answers: layouts, what they cost in Alpa's units, and what is communicated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cfp.layouts import Layouts
from cfp.templates.alpa_ilp.cost import ALL_REDUCE
from cfp.templates.alpa_ilp.problem import AlpaProblem, together


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective that the solution pays for, `times` per step.

    It completes the result of `equation` where `operand` is None, and else brings that operand
    into the layout that the equation asks for. `value` is the tensor that moves. `size_bytes`
    is the b of the formulas in `cost`.
    """

    kind: str
    axis: int
    size_bytes: float
    value: int
    equation: int | None
    operand: int | None
    times: int

    def show(self) -> str:
        at = "" if self.operand is None else f" operand {self.operand}"
        often = f" x{self.times}" if self.times > 1 else ""
        return (
            f"{self.kind} of %{self.value} ({self.size_bytes:.0f} bytes) along axis {self.axis} "
            f"for equation {self.equation}{at}{often}"
        )


@dataclass(frozen=True, slots=True)
class AlpaSolution:
    """`cost` is the objective in Alpa's units; `gap` is 0.0 when it is proved optimal.

    `status` is "optimal" or "time limit". `variables` counts the columns of the integer program.
    `relented`: Alpa's rules forbid every assignment of this step; what they forbid was then
    made very dear, and `cost` has it at the price of gathering the tensor.
    """

    layouts: Layouts
    cost: float
    gap: float
    status: str
    seconds: float
    variables: int
    communications: tuple[Communication, ...]
    relented: bool = False

    def count(self, kind: str) -> int:
        """Returns how often a collective of this kind happens in a step."""
        return sum(c.times for c in self.communications if c.kind == kind)

    def show(self) -> str:
        counts = Counter[str]()
        for c in self.communications:
            counts[c.kind] += c.times
        said = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "nothing"
        lines = [
            f"cost {self.cost:.3f} ({self.status}, gap {self.gap:.2g}, "
            f"{self.variables} variables), communicates {said}"
        ]
        lines += [f"  {c.show()}" for c in self.communications]
        return "\n".join(lines)


def communications(problem: AlpaProblem, ways: Sequence[int]) -> tuple[Communication, ...]:
    """Returns every collective of an assignment, in the order of the equations."""
    cluster = problem.cluster
    shared = {
        second.value
        for first, second in problem.shared
        if together(first, second, (ways[first.node], ways[second.node]))
    }
    found: list[Communication] = []
    for term in problem.sums:
        if term.value in shared:
            continue
        way = ways[term.node]
        size_bytes = term.local_bytes(cluster, way)
        found += [
            Communication(ALL_REDUCE, axis, size_bytes, term.value, term.equation, None, term.times)
            for axis in term.axes[way]
        ]
    for read in problem.reads:
        made, wanted = read.made[ways[read.maker]], read.wanted[ways[read.reader]]
        found += [
            Communication(
                m.kind,
                m.axis,
                m.size_bytes,
                read.value,
                read.equation,
                read.operand,
                read.times,
            )
            for m in read.paid(cluster, made, wanted)[1]
        ]
    return tuple(sorted(found, key=lambda c: (c.equation is None, c.equation or 0, c.operand or 0)))
