"""One option for each occurrence of a segment, and what a choice costs.

    T(choice) = Σ_i times_i[c_i] + Σ_(i,j) edges_ij[c_i, c_j]
    M(choice) = Σ_i kept_i[c_i] + max_i scratch_i[c_i]

Edges may join any two nodes. An infinite time says that something cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One occurrence of a segment: what each of its options adds."""

    times_s: Array
    kept_bytes: Numbers  # adds up over nodes
    scratch_bytes: Numbers  # the largest of all nodes counts


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """`edges[i, j]` with i < j holds seconds by option of i and option of j.

    Nodes that are occurrences of one kind should share their arrays: what is found out about an
    array is found out once.
    """

    nodes: tuple[Node, ...]
    edges: Mapping[tuple[int, int], Array]

    def time_s(self, choice: Sequence[int]) -> float:
        return self.figures(np.array([choice], dtype=np.int64))[0][0]

    def memory_bytes(self, choice: Sequence[int]) -> int:
        return self.figures(np.array([choice], dtype=np.int64))[1][0]

    def figures(self, choices: Numbers) -> tuple[list[float], list[int]]:
        """Seconds and bytes of each row; sums are rounded once, so their order is no matter."""
        columns = [node.times_s[choices[:, i]] for i, node in enumerate(self.nodes)]
        columns += [edge[choices[:, i], choices[:, j]] for (i, j), edge in self.edges.items()]
        table = np.array(columns, dtype=np.float64).reshape(len(columns), len(choices))
        return [math.fsum(row) for row in table.T.tolist()], self.memories(choices).tolist()

    def memories(self, choices: Numbers) -> Numbers:
        """Bytes of each row."""
        kept = np.zeros(len(choices), dtype=np.int64)
        scratch = np.zeros(len(choices), dtype=np.int64)
        for node, options in zip(self.nodes, choices.T, strict=True):
            kept += node.kept_bytes[options]
            np.maximum(scratch, node.scratch_bytes[options], out=scratch)
        return kept + scratch

    def check(self) -> None:
        """Raises `ValueError` where something does not fit together."""
        if not self.nodes:
            raise ValueError("`nodes` must be one or more.")
        for i, node in enumerate(self.nodes):
            where, shape = f"`nodes[{i}]`", node.times_s.shape
            if len(shape) != 1 or not shape[0]:
                raise ValueError(f"{where} needs one time for each of one or more options.")
            _times(node.times_s, f"{where}.times_s")
            for name, sizes in (("kept", node.kept_bytes), ("scratch", node.scratch_bytes)):
                if sizes.shape != shape or not np.issubdtype(sizes.dtype, np.integer):
                    raise ValueError(f"{where}.{name}_bytes must be {shape[0]} integers.")
                if sizes.min() < 0:
                    raise ValueError(f"{where}.{name}_bytes must not be negative.")
        for (i, j), edge in self.edges.items():
            if not 0 <= i < j < len(self.nodes):
                raise ValueError(f"`edges[{i}, {j}]` must join two nodes, the earlier one first.")
            wanted = (len(self.nodes[i].times_s), len(self.nodes[j].times_s))
            if edge.shape != wanted:
                raise ValueError(f"`edges[{i}, {j}]` must be {wanted}, not {edge.shape}.")
            _times(edge, f"`edges[{i}, {j}]`")


def _times(seconds: Array, where: str) -> None:
    if seconds.dtype != np.float64:
        raise ValueError(f"{where} must be float64, not {seconds.dtype}.")
    if not (seconds >= 0).all():
        raise ValueError(f"{where} must be seconds of zero or more, or infinite.")
