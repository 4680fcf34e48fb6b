"""Which dim of a tensor is the batch (BuildInstructionBatchDimMap).

Alpa takes the first dim of the first dot's result, and follows it through the operations, forward
and then back. Here it is the first dim that the first contraction of data (of an argument that is
not a parameter) takes from the data, and Eq. 1 says where it goes.
"""

from __future__ import annotations

from cfp.affine import follow
from cfp.affine.factors import Dims
from cfp.templates.alpa_ilp.ways import is_contraction
from cfp.trace import Equation, Graph

BatchDims = dict[int, int]  # value -> its batch dim


def batch_dims(graph: Graph, parameters: frozenset[int]) -> BatchDims:
    """Returns the batch dim of every value that has one."""
    found = _source(graph, parameters)
    if not found:
        return {}
    for equation in graph.equations:
        _spread(graph, equation, found, forward=True)
    for equation in reversed(graph.equations):
        _spread(graph, equation, found, forward=False)
    return found


def _source(graph: Graph, parameters: frozenset[int]) -> BatchDims:
    data = {v for v in graph.inputs if v not in parameters and graph.values[v].shape}
    for equation in graph.equations:
        fed = [operand for operand, value in enumerate(equation.inputs) if value in data]
        if fed and is_contraction(equation.op):
            mapping = equation.op.map
            assert mapping is not None
            for dim, factors in enumerate(mapping.results[0]):
                for operand in fed:
                    if factors and any(factors[0] in there for there in mapping.operands[operand]):
                        return {equation.outputs[0]: dim}
        if fed:
            data.update(equation.outputs)
    return {}


def _spread(graph: Graph, equation: Equation, found: BatchDims, *, forward: bool) -> None:
    """Carries batch dims from the operands to the results, or back."""
    mapping = equation.op.map
    if mapping is None:
        return
    here = list(zip(equation.inputs, mapping.operands, strict=True))
    there = list(zip(equation.outputs, mapping.results, strict=True))
    if not forward:
        here, there = there, here
    for i, (value, dims) in enumerate(here):
        if value not in found:
            continue
        for j, (other, target) in enumerate(there):
            related = mapping.between(*((i, j) if forward else (j, i))) is not None
            if other not in found and related:
                at = _follow(mapping.sizes, dims, target, found[value], graph, value)
                if at is not None:
                    found[other] = at


def _follow(
    sizes: tuple[int, ...], source: Dims, target: Dims, dim: int, graph: Graph, value: int
) -> int | None:
    there = follow(sizes, source, target, dim, graph.values[value].shape[dim])
    return there[0] if there else None
