"""The verifier of stage 2: `check_blocks` raises where a grouping breaks what it promises.

It is run after the stage in tests and reads nothing but the graph and the result, so it does not
trust the code that grew the blocks. That a split is really preserved (Eq. 1) needs numbers, not
structure: tests/blocks/oracle.py does that by brute force.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from cfp.blocks.block import Block, Blocks, Strategy
from cfp.trace import Graph, Role

CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})


def check_blocks(graph: Graph, blocks: Blocks) -> None:
    """Raises ValueError, naming the block and the equation, unless every invariant holds."""
    for position, block in enumerate(blocks.blocks):
        if block.index != position:
            raise ValueError(f"Block {block.index} stands at position {position}.")
    _check_homes(graph, blocks)
    _check_order(graph, blocks)
    _check_contractions(graph, blocks)
    _check_backward(graph, blocks)
    for block in blocks.blocks:
        _check_structure(graph, block)
        _check_candidates(graph, block)
        _check_splits(graph, block, blocks.mesh_shape)
        _check_strategies(block, blocks.mesh_shape)


def _check_homes(graph: Graph, blocks: Blocks) -> None:
    """Checks that members and prologues partition the forward equations, and that `home` says the
    same."""
    owners: dict[int, int] = {}
    for block in blocks.blocks:
        for index in (*block.members, *block.prologue):
            if index in owners:
                raise ValueError(
                    f"{_name(graph, index)} is in block {owners[index]} and in block {block.index}."
                )
            owners[index] = block.index
    for equation in graph.role(Role.FORWARD):
        if equation.index not in owners:
            raise ValueError(f"{_name(graph, equation.index)} is in no block.")
    for index, owner in owners.items():
        if graph.equations[index].role is not Role.FORWARD:
            raise ValueError(f"{_name(graph, index)} of block {owner} is not a forward equation.")
        if blocks.home.get(index) != owner:
            raise ValueError(
                f"{_name(graph, index)} is in block {owner}, but its home is "
                f"{blocks.home.get(index)}."
            )
    if len(blocks.home) != len(owners):
        raise ValueError(f"Homes of equations in no block: {sorted(set(blocks.home) - {*owners})}.")


def _check_order(graph: Graph, blocks: Blocks) -> None:
    """Checks that blocks can run one after another: nothing is read before it is made."""
    for equation in graph.role(Role.FORWARD):
        home = blocks.home[equation.index]
        for producer in _producers(graph, equation.index):
            if blocks.home.get(producer, -1) > home:
                raise ValueError(
                    f"{_name(graph, equation.index)} in block {home} reads "
                    f"{_name(graph, producer)} of the later block {blocks.home[producer]}."
                )
    for block in blocks.blocks:
        if any(source >= block.index for source in block.inputs_from):
            raise ValueError(f"Block {block.index} says it reads blocks {block.inputs_from}.")


def _check_contractions(graph: Graph, blocks: Blocks) -> None:
    """Checks that every forward contraction of an argument is a member of a block, not just placed
    in one."""
    members = {member for block in blocks.blocks for member in block.members}
    varying = set(graph.inputs)
    tables = set(blocks.parameters)  # parameters, and what is made of them and constants alone
    for equation in graph.equations:
        depends = not varying.isdisjoint(equation.inputs)
        if depends:
            varying.update(equation.outputs)
        if equation.role is not Role.FORWARD:
            continue
        if equation.index not in members:
            looks_up = equation.primitive == "gather" and equation.inputs[0] in tables
            if depends and (equation.primitive in CONTRACTIONS or looks_up):
                raise ValueError(
                    f"{_name(graph, equation.index)} contracts but is a member of no block; it is "
                    f"only placed with block {blocks.home[equation.index]}."
                )
            if all(v in tables or v in graph.constants for v in equation.inputs):
                tables.update(equation.outputs)


def _check_backward(graph: Graph, blocks: Blocks) -> None:
    """Checks that every backward contraction is in the block of the forward one it is matched with,
    once."""
    listed = Counter(index for block in blocks.blocks for index in block.backward)
    for equation in graph.role(Role.BACKWARD):
        if equation.primitive in CONTRACTIONS and listed[equation.index] != 1:
            raise ValueError(
                f"The backward {_name(graph, equation.index)} is in {listed[equation.index]} "
                "blocks, not in one."
            )
    for block in blocks.blocks:
        for index in block.backward:
            if graph.equations[index].role is not Role.BACKWARD:
                raise ValueError(
                    f"{_name(graph, index)} is listed as backward in block {block.index}."
                )
            forward = blocks.matched.get(index)
            if forward is None or blocks.home[forward] != block.index:
                raise ValueError(
                    f"The backward {_name(graph, index)} of block {block.index} is matched with "
                    f"{forward}, which is not there."
                )
    if set(blocks.matched) != set(listed):
        raise ValueError(f"Matched, but in no block: {sorted(set(blocks.matched) - set(listed))}.")


def _check_structure(graph: Graph, block: Block) -> None:
    """Checks that seeds are members and siblings, and that members are in the block's loop."""
    if not block.seeds or not set(block.seeds) <= set(block.members):
        raise ValueError(f"Block {block.index}: its seeds {block.seeds} are not all members.")
    for member in block.members:
        if graph.equations[member].loop != block.loop:
            raise ValueError(
                f"Block {block.index} is in loop {block.loop}, its member {_name(graph, member)} "
                f"in loop {graph.equations[member].loop}."
            )
    first, last = min(block.seeds), max(block.seeds)
    tainted: set[int] = set()
    for equation in graph.equations[first : last + 1] if first != last else ():
        depends = not tainted.isdisjoint(equation.inputs)
        if depends and equation.index in block.seeds:
            raise ValueError(
                f"Block {block.index}: the seed {_name(graph, equation.index)} depends on another "
                "seed of the block."
            )
        if depends or equation.index in block.seeds:
            tainted.update(equation.outputs)


def _check_candidates(graph: Graph, block: Block) -> None:
    """Checks that a candidate splits seeds of this block in dims that exist and divide."""
    names = [candidate.name for candidate in block.candidates]
    if len(set(names)) != len(names):
        raise ValueError(f"Block {block.index}: two candidates have one name: {names}.")
    for candidate in block.candidates:
        where = f"Block {block.index}, candidate {candidate.name}"
        if candidate.extent < 2 or not candidate.seeds:
            raise ValueError(f"{where}: extent {candidate.extent}, {len(candidate.seeds)} seeds.")
        for seed, split in candidate.seeds.items():
            if seed not in block.seeds:
                raise ValueError(f"{where} splits {_name(graph, seed)}, not a seed of the block.")
            op = graph.equations[seed].op
            pairs = [*zip(split.operand_dims, op.in_shapes, strict=True)]
            pairs.append((split.result_dim, op.out_shapes[0]))
            for dim, shape in pairs:
                if dim is not None and not _divides(dim, shape, candidate.extent):
                    raise ValueError(
                        f"{where}: dim {dim} of shape {shape} in {_name(graph, seed)} does not "
                        f"divide by {candidate.extent}."
                    )


def _check_splits(graph: Graph, block: Block, mesh_shape: Sequence[int]) -> None:
    """Checks that the values of the block are those its members make, and split where they can."""
    made = {value for member in block.members for value in graph.equations[member].outputs}
    if made != set(block.splits):
        raise ValueError(f"Block {block.index}: splits of {sorted(made ^ set(block.splits))}.")
    for value, dims in block.splits.items():
        where = f"Block {block.index}, {graph.describe(value)}"
        shape = graph.values[value].shape
        if len(dims) != len(block.candidates):
            raise ValueError(f"{where}: {len(dims)} dims, {len(block.candidates)} candidates.")
        taken = [dim for dim in dims if dim is not None]
        if len(set(taken)) != len(taken):
            raise ValueError(f"{where}: two candidates split one dim: {dims}.")
        for candidate, dim in zip(block.candidates, dims, strict=True):
            for size in (candidate.extent, *filter(candidate.allows, mesh_shape)):
                if dim is not None and not _divides(dim, shape, size):
                    raise ValueError(
                        f"{where}: {candidate.name} splits dim {dim} in {size} parts, which do "
                        f"not divide {shape}."
                    )
    for candidate, column in zip(block.candidates, _columns(block), strict=True):
        for seed, split in candidate.seeds.items():
            if column[graph.equations[seed].outputs[0]] != split.result_dim:
                raise ValueError(
                    f"Block {block.index}: {candidate.name} splits the result of "
                    f"{_name(graph, seed)} in dim {split.result_dim} as a seed, not as a value."
                )


def _check_strategies(block: Block, mesh_shape: tuple[int, ...]) -> None:
    """Checks that strategies are valid, differ, and replicate on an axis only where that is
    allowed."""
    strategies = block.strategies(mesh_shape)
    if not strategies or len(set(strategies)) != len(strategies):
        raise ValueError(f"Block {block.index}: strategies {strategies} are none or repeat.")
    for strategy in strategies:
        where = f"Block {block.index}, strategy {strategy} on mesh {mesh_shape}"
        if len(strategy) != len(mesh_shape):
            raise ValueError(f"{where}: not one choice per axis.")
        if not _fits(block, strategy, mesh_shape):
            raise ValueError(f"{where}: sizes do not divide.")
        for axis, size in enumerate(mesh_shape):
            if strategy[axis] is not None or size == 1 or block.cheap:
                continue
            for i in range(len(block.candidates)):
                better = (*strategy[:axis], i, *strategy[axis + 1 :])
                if _fits(block, better, mesh_shape):
                    raise ValueError(f"{where}: axis {axis} is replicated, but {better} fits.")


def _fits(block: Block, strategy: Strategy, mesh_shape: Sequence[int]) -> bool:
    for i, candidate in enumerate(block.candidates):
        sizes = [size for size, at in zip(mesh_shape, strategy, strict=True) if at == i]
        if not candidate.allows(math.prod(sizes)):
            return False
    return True


def _columns(block: Block) -> list[dict[int, int | None]]:
    """Returns for each candidate a dict: value -> the dim it splits."""
    return [
        {value: dims[i] for value, dims in block.splits.items()}
        for i in range(len(block.candidates))
    ]


def _divides(dim: int, shape: Sequence[int], parts: int) -> bool:
    return 0 <= dim < len(shape) and shape[dim] % parts == 0


def _producers(graph: Graph, equation: int) -> Iterable[int]:
    for value in graph.equations[equation].inputs:
        producer = graph.values[value].producer
        if producer is not None:
            yield producer


def _name(graph: Graph, index: int) -> str:
    equation = graph.equations[index]
    results = " ".join(graph.values[value].show() for value in equation.outputs)
    return f"equation {index} ({results} = {equation.primitive})"
