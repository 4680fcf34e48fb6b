"""Where Alpa may change a layout once for several readers.

The dots that Alpa sees have one dim of rows, one of columns and one that is summed: XLA merges the
others by a reshape of the operand, and one reshape serves every dot that reads the value. A
reshape with several readers is a node of its own in Alpa, so the value is resharded there once
(expert inputs: exchanged once for the dot and for the gradient of its weight). A JAX dot takes
the dims as they are; these values have the node all the same.
"""

from __future__ import annotations

from collections import Counter

from cfp.affine import OpMap
from cfp.templates.alpa_ilp.ways import DOT
from cfp.trace import Equation, Graph


def merge_points(graph: Graph, live: frozenset[int]) -> frozenset[int]:
    """Returns the values that two dots or more read with dims to merge."""
    counts = Counter[int]()
    for equation in graph.equations:
        if equation.index in live and equation.primitive == DOT:
            counts.update(merged_operands(equation).values())
    return frozenset(value for value, count in counts.items() if count > 1)


def merged_operands(equation: Equation) -> dict[int, int]:
    """Returns the operands (and their values) of a dot with two dims or more alike."""
    mapping = equation.op.map
    assert mapping is not None
    return {
        operand: value for operand, value in enumerate(equation.inputs) if _merges(mapping, operand)
    }


def _merges(mapping: OpMap, operand: int) -> bool:
    other = {factor for dim in mapping.operands[1 - operand] for factor in dim}
    kinds = Counter[tuple[bool, bool]]()
    for factors in mapping.operands[operand]:
        if factors:
            kinds[factors[0] in other, factors[0] in mapping.reduced] += 1
    return max(kinds[False, False], kinds[True, True]) > 1
