"""What hand-written cases share: shapes, a training step around a forward function, attention."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from cfp.blocks import Block, Blocks, build_blocks
from cfp.trace import Graph, trace
from tests.blocks.check import check_blocks

from .oracle import violations

X = (8, 4, 16)  # batch, sequence, hidden


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def training(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A step that differentiates the sum of squares and updates the parameters."""

    def step(params: Any, *data: Any) -> Any:
        grads = jax.grad(lambda p: jnp.sum(jnp.square(forward(p, *data))))(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    return step


def build(
    forward: Callable[..., Any],
    shapes: dict[str, tuple[int, ...]],
    *data: jax.ShapeDtypeStruct,
    mesh: tuple[int, ...] = (4,),
    sequence: bool = False,
) -> tuple[Graph, Blocks]:
    """The blocks of a training step, every invariant and Eq. 1 checked."""
    params = {name: floats(*shape) for name, shape in shapes.items()}
    graph = trace(training(forward), params, *(data or (floats(*X),)))
    blocks = build_blocks(graph, mesh, sequence=sequence)
    check_blocks(graph, blocks)
    assert not [v for block in blocks.blocks for v in violations(graph, block)]
    return graph, blocks


def text(graph: Graph, blocks: Blocks) -> str:
    """`Blocks.show` without source lines."""
    return re.sub(r" at \S+ \(.*\)$", "", blocks.show(graph), flags=re.MULTILINE)


def kinds(graph: Graph, equations: tuple[int, ...]) -> list[str]:
    return [graph.equations[e].primitive for e in equations]


def extents(block: Block) -> dict[str, int]:
    return {candidate.name: candidate.extent for candidate in block.candidates}


def seeds(blocks: Blocks) -> list[int]:
    return [len(block.seeds) for block in blocks.blocks]


def backward(blocks: Blocks) -> list[int]:
    """Returns, for each block, the contractions that differentiate it (not those computed
    again)."""
    again = blocks.recomputed.equations
    return [sum(b not in again for b in block.backward) for block in blocks.blocks]


def heads(x: jax.Array, many: int) -> jax.Array:
    return x.reshape(*x.shape[:2], many, -1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    probs = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    out = jnp.einsum("bhqk,bkhd->bqhd", probs, v)
    return out.reshape(*out.shape[:2], -1)


def attention(q_heads: int, kv_heads: int) -> Callable[..., jax.Array]:
    """Separate q, k, v; keys and values from a second input where there is one."""

    def forward(p: Any, x: jax.Array, *memory: jax.Array) -> jax.Array:
        y = memory[0] if memory else x
        q, k, v = (
            heads(x @ p["q"], q_heads),
            heads(y @ p["k"], kv_heads),
            heads(y @ p["v"], kv_heads),
        )
        k, v = (jnp.repeat(t, q_heads // kv_heads, axis=2) for t in (k, v))
        return attend(q, k, v) @ p["out"]

    return forward
