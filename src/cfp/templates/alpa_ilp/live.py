"""Which equations the outputs need. Alpa sees the step after XLA dropped the others."""

from __future__ import annotations

from cfp.trace import Graph


def live_equations(graph: Graph) -> frozenset[int]:
    """Returns the equations that something needs. What a loop carries is needed by its next
    iteration, even where nobody reads its end."""
    needed, found = set(graph.outputs), set[int]()
    exits = {entered: left for loop in graph.loops for entered, left in loop.carries}
    while True:
        before = len(found)
        for equation in reversed(graph.equations):
            if not needed.isdisjoint(equation.outputs):
                found.add(equation.index)
                needed.update(equation.inputs)
        carried = {exits[index] for index in found & exits.keys()}
        needed.update(v for index in carried for v in graph.equations[index].outputs)
        if len(found) == before:
            return frozenset(found)
