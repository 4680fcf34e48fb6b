"""Fingerprints: which blocks do the same work and talk in the same way.

A block's fingerprint is its graph of contractions: each with its shapes, dtypes and map, and on
each edge the element-level map composed along the path, from the block's other contractions or
from its boundary (numbered as first read). What lies on an edge (casts, reshapes of a parameter,
activations) is seen only through its map, and what reaches no contraction (a loss, a metric) not
at all, as in section 4.1 of the paper.

`Wiring` says from how many blocks back each boundary tensor comes, so that a sequence of blocks
is compared by comparing numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cfp.affine import Map, identity
from cfp.blocks import Block, Blocks, SeedSplit
from cfp.blocks.build import is_contraction
from cfp.trace import LOOP_ENTER, Equation, Graph, Op, Role

Label = tuple[str, int]  # ("contraction", ordinal) or ("boundary", ordinal)
Edge = tuple[Label, Map | str]  # the map, or the opaque primitive on the way
SplitsOfSeeds = tuple[int, tuple[SeedSplit | None, ...]]  # a candidate's extent, and its splits
Wiring = tuple[int | None, ...]  # per boundary tensor: blocks back; None from outside a loop


@dataclass(frozen=True, slots=True)
class BlockPrint:
    """A block as `cover` sees it: its class, and where its boundary comes from."""

    kind: int
    wiring: Wiring


class Printer:
    """Numbers block classes. Maps along equal paths are composed once."""

    def __init__(self, graph: Graph, blocks: Blocks) -> None:
        self.graph = graph
        self.blocks = blocks
        self.texts: list[str] = []
        self._kinds: dict[object, int] = {}
        self._steps: dict[tuple[Map, int, int, int], Map | str] = {}
        self._contractions = {
            member
            for block in blocks.blocks
            for member in block.members
            if is_contraction(graph.equations[member], block.seeds)
        }
        self._relevant = self._leading_to_contractions()

    def print_all(self) -> list[BlockPrint]:
        return [self._print(block) for block in self.blocks.blocks]

    def _leading_to_contractions(self) -> set[int]:
        relevant: set[int] = set()
        for equation in reversed(self.graph.equations):
            if equation.role is Role.FORWARD and (
                equation.index in self._contractions
                or any(r in relevant for v in equation.outputs for r in self.graph.readers[v])
            ):
                relevant.add(equation.index)
        return relevant

    def _print(self, block: Block) -> BlockPrint:
        graph, sources = self.graph, self.blocks.sources
        inside = sorted(
            e
            for e in (*block.members, *block.prologue)
            if e in self._relevant and graph.equations[e].primitive != LOOP_ENTER
        )
        reach: dict[int, frozenset[Edge]] = {}
        boundary: dict[int, int] = {}
        nodes: list[tuple[Op, tuple[frozenset[Edge], ...]]] = []
        leaving: set[frozenset[Edge]] = set()
        within = set(inside)
        for index in inside:
            equation = graph.equations[index]
            for value in equation.inputs:
                if value not in reach and value in sources:
                    label = ("boundary", boundary.setdefault(value, len(boundary)))
                    reach[value] = frozenset({(label, identity(graph.values[value].shape))})
            incoming = tuple(reach.get(value, frozenset()) for value in equation.inputs)
            if index in self._contractions:
                label = ("contraction", len(nodes))
                nodes.append((equation.op, incoming))
                output = equation.outputs[0]
                reach[output] = frozenset({(label, identity(graph.values[output].shape))})
            elif any(incoming):
                for result, output in enumerate(equation.outputs):
                    reach[output] = self._through(equation, incoming, result)
            for output in equation.outputs:
                if output in reach and self._leaves(output, within):
                    leaving.add(reach[output])
        candidates = tuple(
            (c.extent, tuple(c.seeds.get(seed) for seed in block.seeds)) for c in block.candidates
        )
        rows = tuple(found.extent for found in block.rows)
        key = (
            tuple((id(op), edges) for op, edges in nodes),
            frozenset(leaving),
            candidates,
            rows,
            block.cheap,
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self.texts)
            self.texts.append(_text(nodes, leaving, candidates, rows))
        wiring = tuple(self._distance(block, value) for value in boundary)
        return BlockPrint(kind, wiring)

    def _through(
        self, equation: Equation, incoming: tuple[frozenset[Edge], ...], result: int
    ) -> frozenset[Edge]:
        op = equation.op
        edges: set[Edge] = set()
        for operand, arriving in enumerate(incoming):
            for label, path in arriving:
                if isinstance(path, str) or op.map is None:
                    edges.add((label, path if isinstance(path, str) else op.primitive))
                    continue
                key = (path, id(op), operand, result)
                step = self._steps.get(key)
                if step is None:
                    between = op.map.between(operand, result)
                    step = path.then(between) if between is not None else "unrelated"
                    self._steps[key] = step
                if step != "unrelated":
                    edges.add((label, step))
        return frozenset(edges)

    def _leaves(self, value: int, within: set[int]) -> bool:
        readers = self.graph.readers[value]
        return any(reader not in within and reader in self._relevant for reader in readers)

    def _distance(self, block: Block, value: int) -> int | None:
        producer = self.graph.values[value].producer
        assert producer is not None  # a boundary tensor comes from a block
        if self.graph.equations[producer].primitive == LOOP_ENTER:
            return None
        return block.index - self.blocks.home[producer]


def digest(text: str) -> str:
    """Returns sixteen hex digits that name a text, stable across processes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(
    nodes: list[tuple[Op, tuple[frozenset[Edge], ...]]],
    leaving: set[frozenset[Edge]],
    candidates: tuple[SplitsOfSeeds, ...],
    rows: tuple[int, ...],
) -> str:
    lines = []
    for op, incoming in nodes:
        assert op.map is not None
        dtypes = ",".join(map(str, op.out_dtypes))
        lines.append(f"{op.primitive} {op.in_shapes}->{op.out_shapes} {dtypes} {op.map.show()}")
        lines += [f"  operand {i}: {_edges(edges)}" for i, edges in enumerate(incoming)]
    lines += sorted(f"leaves: {_edges(edges)}" for edges in leaving)
    for extent, splits in candidates:
        dims = ", ".join(f"{s.operand_dims}->{s.result_dim}" if s else "whole" for s in splits)
        lines.append(f"candidate of {extent}: {dims}")
    if rows:
        lines.append(f"streams split by rows of {', '.join(map(str, rows))}")
    return "\n".join(lines)


def _edges(edges: frozenset[Edge]) -> str:
    return "; ".join(
        sorted(
            f"{kind} {ordinal} {path if isinstance(path, str) else path.show()}"
            for (kind, ordinal), path in edges
        )
    )
