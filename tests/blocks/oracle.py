"""Eq. 1 by brute force. Nothing here reads a map.

A block promises that, with candidate c split in P parts, device p can compute its part of every
tensor of the block from its part of the seeds' results. So: disturb chunk p of the result of
every seed that c splits, and look at the tensors of the block.

- A tensor that c splits in dim d may change in chunk p of d alone.
- A tensor that c does not split is whole on every device, so it must not change at all. This is
  what makes merged siblings right: where c splits the result of one seed and not of the other
  (it meets no dim there), the other branch may not depend on the first.
- A candidate that splits no seed's result (a contracted dim) leaves every tensor whole once its
  partial sums are added: it says nothing about the tensors, but about the seed. Its parts,
  computed alone, must add up to the whole.

It is enough to try the finest split, P = the candidate's extent: a chunk of a coarser split is a
union of finest chunks, in the same places of the seeds' results and of the block's tensors.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cfp.blocks import Block, SeedSplit
from cfp.trace import Equation, Graph

from .interpret import run

Env = dict[int, Any]
Run = Callable[[Sequence[Equation], Env], None]
POISON = (np.nan, 1000.0)  # NaN goes through sums, a large number through sorts and choices


def violations(graph: Graph, block: Block, run: Run = run, seed: int = 0) -> Iterator[str]:
    """Says in words where the block breaks its promise."""
    env = outside(graph, block, np.random.default_rng(seed))
    downstream = [graph.equations[m] for m in block.members if m not in block.seeds]
    clean = dict(env)
    run(downstream, clean)
    for i, candidate in enumerate(block.candidates):
        split = {
            graph.equations[s].outputs[0]: how.result_dim
            for s, how in candidate.seeds.items()
            if how.result_dim is not None
        }
        parts = candidate.extent
        for s, how in candidate.seeds.items():
            yield from seed_violations(graph, graph.equations[s], how, parts, run)
        for part, poison in itertools.product(range(parts) if split else (), POISON):
            dirty = dict(env)
            for value, dim in split.items():
                dirty[value] = disturbed(env[value], dim, parts, part, poison)
            run(downstream, dirty)
            for value, dims in block.splits.items():
                if leaks(clean[value], dirty[value], dims[i], parts, part):
                    yield (
                        f"block {block.index}: part {part} of {candidate.name} in {parts} reaches "
                        f"beyond that part in dim {dims[i]} of {graph.describe(value)}"
                    )


def seed_violations(
    graph: Graph, seed: Equation, how: SeedSplit, parts: int, run: Run
) -> Iterator[str]:
    """A seed's own split: parts of the operands give a part of the result, or of the sum."""
    rng = np.random.default_rng(1)
    env = {value: made(graph, value, rng) for value in seed.inputs}
    if len(env) < len(seed.inputs):
        return  # a product of a tensor with itself: its operands cannot be changed one by one
    where = f"{seed.primitive} {seed.op.in_shapes} split {how} in {parts}"
    result = seed.outputs[0]
    clean = dict(env)
    run([seed], clean)
    cuts = [(v, d) for v, d in zip(seed.inputs, how.operand_dims, strict=True) if d is not None]
    if how.result_dim is None:
        total = 0.0
        for part in range(parts):
            alone = dict(env)
            for value, dim in cuts:
                kept = chunk(alone[value].shape, dim, parts, part)
                alone[value] = np.where(kept, alone[value], 0)
            run([seed], alone)
            total = total + np.asarray(alone[result])
        if not cuts or not np.allclose(total, clean[result], atol=1e-4):
            yield f"{where}: the parts do not add up"
        return
    for (value, dim), part in itertools.product(cuts, range(parts)):
        dirty = {**env, value: disturbed(env[value], dim, parts, part, np.nan)}
        run([seed], dirty)
        if leaks(clean[result], dirty[result], how.result_dim, parts, part):
            yield f"{where}: operand {graph.describe(value)} reaches another part"


def outside(graph: Graph, block: Block, rng: np.random.Generator) -> Env:
    """Values for all that the block's members read and do not make, and for the seeds' results."""
    inside = set(block.members) - set(block.seeds)
    made_inside = {v for m in inside for v in graph.equations[m].outputs}
    read = {v for m in inside for v in graph.equations[m].inputs} - made_inside
    results = {v for s in block.seeds for v in graph.equations[s].outputs}
    return {value: made(graph, value, rng) for value in sorted(read | results)}


def made(graph: Graph, value: int, rng: np.random.Generator) -> np.ndarray:
    if value in graph.constants:
        return np.asarray(graph.constants[value])
    shape, dtype = graph.values[value].shape, np.dtype(graph.values[value].dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape) > 0
    if dtype.kind in "iu":
        return rng.integers(0, 3, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def chunk(shape: Sequence[int], dim: int, parts: int, part: int) -> np.ndarray:
    """True in one of `parts` equal chunks of a dim."""
    size = shape[dim] // parts
    where = np.zeros(shape, bool)
    where[(slice(None),) * dim + (slice(part * size, (part + 1) * size),)] = True
    return where


def disturbed(x: np.ndarray, dim: int, parts: int, part: int, poison: float) -> np.ndarray:
    where = chunk(x.shape, dim, parts, part)
    if x.dtype.kind == "f":
        noise = np.arange(x.size, dtype=x.dtype).reshape(x.shape)
        return np.where(where, np.asarray(poison + noise, x.dtype), x)
    return np.where(where, x ^ 1 if x.dtype.kind == "b" else x + 1, x).astype(x.dtype)


def leaks(clean: Any, dirty: Any, dim: int | None, parts: int, part: int) -> bool:
    """Whether anything changed outside the chunk."""
    clean, dirty = np.asarray(clean), np.asarray(dirty)
    changed = (clean != dirty) & ((clean == clean) | (dirty == dirty))
    if dim is None or clean.shape[dim] % parts:
        return dim is not None or bool(changed.any())
    size = clean.shape[dim] // parts
    changed[(slice(None),) * dim + (slice(part * size, (part + 1) * size),)] = False
    return bool(changed.any())
