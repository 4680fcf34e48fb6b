"""Small random training steps, each told by its seed.

A recipe is a list of steps on the values so far: products with a new parameter, batched
products, elementwise operations, residual sums, norms, reshapes, transposes, reductions and
slices. All extents are powers of two from 2 to 64.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

Shape = tuple[int, ...]
INPUTS: tuple[Shape, ...] = ((8, 4), (8, 8), (4, 16), (4, 8, 4), (4, 4, 8), (8, 4, 16))
WIDTHS = (4, 8, 16)
MOST_ELEMENTS = 2048


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a recipe: what to do, to which values, and its detail."""

    kind: str
    operands: tuple[int, ...]
    detail: tuple[int, ...] = ()


@dataclass(slots=True)
class Recipe:
    """`shapes` are those of the values, the input first; `weights` those of the parameters."""

    shapes: list[Shape]
    moves: list[Move] = field(default_factory=list)
    weights: list[Shape] = field(default_factory=list)

    def show(self) -> str:
        lines = [f"v0 = input {list(self.shapes[0])}"]
        for i, move in enumerate(self.moves, start=1):
            operands = " ".join(f"v{v}" for v in move.operands)
            detail = f" {list(move.detail)}" if move.detail else ""
            lines.append(f"v{i} = {move.kind} {operands}{detail}  {list(self.shapes[i])}")
        return "\n".join(lines)


def random_recipe(seed: int) -> Recipe:
    rng = random.Random(seed)
    recipe = Recipe([rng.choice(INPUTS)])
    _extend(rng, recipe, "matmul")
    for _ in range(rng.randint(2, 8)):
        _extend(rng, recipe, rng.choice(_KINDS))
    _extend(rng, recipe, "matmul")
    return recipe


def as_step(recipe: Recipe) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a training step: the outputs are what nothing reads; their sum of squares falls."""
    read = {value for move in recipe.moves for value in move.operands}
    last = [v for v in range(1, len(recipe.shapes)) if v not in read]

    def forward(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        values, unused = [x], iter(weights)
        for move in recipe.moves:
            operands = [values[v] for v in move.operands]
            if move.kind == "matmul":
                operands.append(next(unused))
            values.append(_KINDS_RUN[move.kind](operands, move.detail))
        return [values[v] for v in last]

    return training_step(forward), (_structs(recipe.weights), *_structs(recipe.shapes[:1]))


def training_step(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step that descends on half the squares of `forward`'s results, whose cotangents are
    themselves."""

    def step(weights: Any, *inputs: jax.Array) -> tuple[Any, Any]:
        results, pull = jax.vjp(lambda w: forward(w, *inputs), weights)
        (gradients,) = pull(results)
        return results, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


def _structs(shapes: list[Shape]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def _extend(rng: random.Random, recipe: Recipe, kind: str) -> None:
    """Adds a move of this kind where one is possible."""
    count = len(recipe.shapes)
    value = count - 1 if rng.random() < 0.65 else rng.randrange(count)
    shape = recipe.shapes[value]
    made: tuple[Move, Shape] | None = None
    if kind == "matmul":
        width = rng.choice(WIDTHS)
        made = Move(kind, (value,)), (*shape[:-1], width)
    elif kind in ("tanh", "norm"):
        made = Move(kind, (value,)), shape
    elif kind in ("add", "multiply"):
        others = [v for v in range(count) if v != value and recipe.shapes[v] == shape]
        if others:
            made = Move(kind, (value, rng.choice(others))), shape
    elif kind == "transpose" and len(shape) > 1:
        order = tuple(rng.sample(range(len(shape)), len(shape)))
        made = Move(kind, (value,), order), tuple(shape[d] for d in order)
    elif kind == "merge" and len(shape) > 1:
        d = rng.randrange(len(shape) - 1)
        new = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        made = Move("reshape", (value,), new), new
    elif kind == "unmerge" and len(shape) < 4:
        d = rng.randrange(len(shape))
        if shape[d] >= 8:
            major = rng.choice((2, 4))
            new = (*shape[:d], major, shape[d] // major, *shape[d + 1 :])
            made = Move("reshape", (value,), new), new
    elif kind == "reduce" and len(shape) > 1:
        d = rng.randrange(len(shape))
        made = Move(kind, (value,), (d,)), (*shape[:d], *shape[d + 1 :])
    elif kind == "half":
        d = rng.randrange(len(shape))
        if shape[d] >= 8:
            new = (*shape[:d], shape[d] // 2, *shape[d + 1 :])
            made = Move(kind, (value,), (d,)), new
    elif kind == "pair" and len(shape) == 3:
        others = [
            v
            for v, s in enumerate(recipe.shapes)
            if (len(s), s[0], s[-1]) == (3, shape[0], shape[-1])
        ]
        other = rng.choice(others)
        made = Move(kind, (value, other)), (*shape[:2], recipe.shapes[other][1])
    if made is None or math.prod(made[1]) > MOST_ELEMENTS or max(made[1]) > 64:
        return
    recipe.moves.append(made[0])
    recipe.shapes.append(made[1])
    if kind == "matmul":
        recipe.weights.append((shape[-1], made[1][-1]))


_KINDS = (
    *("matmul", "matmul", "matmul", "tanh", "add", "add", "multiply", "norm", "transpose"),
    *("merge", "unmerge", "reduce", "half", "pair"),
)

_KINDS_RUN: dict[str, Callable[[list[jax.Array], tuple[int, ...]], jax.Array]] = {
    "matmul": lambda v, _: v[0] @ v[1],
    "tanh": lambda v, _: jnp.tanh(v[0]),
    "norm": lambda v, _: v[0] * jnp.sum(v[0] * v[0], axis=-1, keepdims=True),
    "add": lambda v, _: v[0] + v[1],
    "multiply": lambda v, _: v[0] * v[1],
    "transpose": lambda v, order: jnp.transpose(v[0], order),
    "reshape": lambda v, shape: jnp.reshape(v[0], shape),
    "reduce": lambda v, dims: jnp.sum(v[0], axis=dims),
    "half": lambda v, dims: jax.lax.slice_in_dim(v[0], 0, v[0].shape[dims[0]] // 2, axis=dims[0]),
    "pair": lambda v, _: jnp.einsum("bij,bkj->bik", v[0], v[1]),
}
