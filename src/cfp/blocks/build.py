"""Stage 2: a `Graph` becomes ParallelBlocks (the paper's Algorithm 1 and its refinement)."""

from __future__ import annotations

import statistics
from collections.abc import Container, Mapping
from dataclasses import replace

from cfp.blocks.backward import match_backward
from cfp.blocks.batch import find_batch
from cfp.blocks.block import Block, Blocks, Candidate
from cfp.blocks.contraction import flops
from cfp.blocks.grow import Growth
from cfp.blocks.operands import OPERANDS
from cfp.blocks.ownership import Growing
from cfp.blocks.parameters import find_parameters
from cfp.blocks.place import place
from cfp.blocks.recompute import Recomputed, find_recomputed
from cfp.blocks.refine import find_cuts, trim
from cfp.blocks.streams import add_streams
from cfp.blocks.words import numbered
from cfp.errors import CfpError
from cfp.trace import Equation, Graph

CHEAP_SHARE = 0.2  # a block below this share of the median block's FLOPs may be computed everywhere


def build_blocks(graph: Graph, mesh_shape: tuple[int, ...], *, sequence: bool = False) -> Blocks:
    """Groups the step's forward equations around its contractions."""
    parameters = find_parameters(graph)
    batch = find_batch(graph, parameters)
    cuts: frozenset[int] = frozenset()
    while True:
        growth = Growth(graph, parameters, batch, mesh_shape, sequence=sequence, cuts=cuts)
        growth.run()
        trim(growth)
        more = find_cuts(growth) - cuts
        if not more:
            break
        cuts |= more
    if not growth.blocks:
        raise CfpError(
            "The step contracts nothing (no matrix product, convolution or lookup in a "
            "parameter): there is nothing to split. Pass the whole training step."
        )
    home = place(graph, growth)
    contractions = {
        member
        for block in growth.blocks
        for member in block.members
        if is_contraction(graph.equations[member], block.seeds)
    }
    recomputed = find_recomputed(graph, contractions)
    matched = match_backward(graph, contractions, recomputed, parameters)
    return add_streams(graph, _finish(graph, growth, home, matched, recomputed))


def _finish(
    graph: Graph,
    growth: Growth,
    home: Mapping[int, int],
    matched: Mapping[int, int],
    recomputed: Recomputed,
) -> Blocks:
    roots = growth.blocks
    number = {block.index: i for i, block in enumerate(roots)}
    home = {equation: number[block] for equation, block in home.items()}
    placed: list[list[int]] = [[] for _ in roots]
    members = {member for block in roots for member in block.members}
    for equation in sorted(home):
        if equation not in members:
            placed[home[equation]].append(equation)
    backward: list[list[int]] = [[] for _ in roots]
    for equation, forward in sorted(matched.items()):
        backward[home[forward]].append(equation)
    owned: list[list[int]] = [[] for _ in roots]
    for value, owner in growth.owner.items():
        owned[number[growth.find(owner)]].append(value)
    work = [_flops(graph, block) for block in roots]
    typical = statistics.median([f for f in work if f > 0] or [0.0])
    blocks = [
        Block(
            index=i,
            seeds=tuple(block.seeds),
            members=tuple(sorted(block.members)),
            prologue=tuple(placed[i]),
            backward=tuple(backward[i]),
            candidates=_named([growth.candidates[identity] for identity in block.candidates]),
            splits=_splits(growth, block, owned[i]),
            inputs_from=tuple(sorted({number[growth.find(b)] for b in block.before} - {i})),
            ended_by=tuple(block.ended_by),
            loop=block.loop,
            flops=work[i],
            cheap=work[i] < CHEAP_SHARE * typical,
        )
        for i, block in enumerate(roots)
    ]
    sources = {
        value: frozenset(number[growth.find(b)] for b in blocks_of)
        for value, blocks_of in growth.sources.items()
    }
    return Blocks(
        blocks=tuple(blocks),
        home=home,
        matched=matched,
        recomputed=recomputed,
        sources=sources,
        parameters=growth.parameters,
        mesh_shape=growth.mesh_shape,
    )


def _splits(growth: Growth, block: Growing, owned: list[int]) -> dict[int, tuple[int | None, ...]]:
    """Returns, for every value that the block owns, which dim each of its candidates splits."""
    order = {identity: i for i, identity in enumerate(block.candidates)}
    splits: dict[int, tuple[int | None, ...]] = {}
    for value in owned:
        dims: list[int | None] = [None] * len(order)
        for identity, (dim, _) in growth.positions[value].items():
            dims[order[growth.candidate(identity)]] = dim
        splits[value] = tuple(dims)
    return splits


def _named(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    names = numbered([candidate.split_name for candidate in candidates])
    return tuple(replace(c, name=name) for c, name in zip(candidates, names, strict=True))


def _flops(graph: Graph, block: Growing) -> float:
    return sum(
        flops(graph.equations[member].op)
        for member in block.members
        if graph.equations[member].primitive in OPERANDS
    )


def is_contraction(equation: Equation, seeds: Container[int]) -> bool:
    """Returns whether an equation is a product or a convolution anywhere, or a lookup that is a
    seed."""
    return equation.primitive in OPERANDS and (
        equation.primitive != "gather" or equation.index in seeds
    )
