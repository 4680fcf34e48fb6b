"""The model's FLOPs of one step: two per multiply-add of each matrix product and convolution.

The forward and the backward pass count, times the iterations of the loops around them. What
the backward pass computes again (`jax.checkpoint`) counts once. All else counts nothing: lookups,
elementwise work, the update, kernels and loops that the trace does not look into.
"""

from __future__ import annotations

from cfp.blocks.contraction import flops
from cfp.blocks.operands import OPERANDS
from cfp.blocks.recompute import find_recomputed
from cfp.trace import Graph, Role


def model_flops(graph: Graph) -> float:
    contractions = [e for e in graph.equations if e.primitive in OPERANDS]
    forward = [e.index for e in contractions if e.role is Role.FORWARD]
    again = find_recomputed(graph, forward).equations
    return sum(
        flops(e.op) * graph.times(e.loop)
        for e in contractions
        if e.role is not Role.UPDATE and e.index not in again
    )
