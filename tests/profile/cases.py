"""Steps that the tests of profiling share, analysed once per process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cfp.analysis import Analysis, analyze
from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from tests.foreign.plain import PLAIN, accumulation

STATES = tuple(State)


class Untouched:
    """A `Touch` that does nothing."""

    def value(self, value: int, array: Any) -> Any:
        return array

    def operand(self, equation: int, operand: int, array: Any) -> Any:
        return array

    def entry(self, equation: int, operand: int) -> int | None:
        return None

    def enter(self, equation: int, operand: int, array: Any) -> Any:
        raise AssertionError("nothing enters")

    def fence(self, held: Any, after: Any, handed_on: Any) -> list[Any]:
        return [array for _, array in held]


@functools.cache
def model(name: str, mesh_shape: tuple[int, ...] = (4,), **options: Any) -> Analysis:
    """A tiny built-in model."""
    step, args = make_step(config(name, **options), abstract=True)
    return analyze(step, *args, mesh_shape=mesh_shape)


@functools.cache
def foreign(name: str, mesh_shape: tuple[int, ...] = (4,)) -> Analysis:
    step, args = PLAIN[name](abstract=True)
    return analyze(step, *args, mesh_shape=mesh_shape)


@functools.cache
def two_products(mesh_shape: tuple[int, ...] = (4,)) -> Analysis:
    """[64,16] x [16,32], relu, x [32,24], with momentum; one segment of two blocks."""

    def step(params: Any, momentum: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((jax.nn.relu(x @ params["a"]) @ params["b"]) ** 2).mean()

        grads = jax.grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, params, momentum), momentum

    params = {"a": shape(16, 32), "b": shape(32, 24)}
    return analyze(step, params, params, shape(64, 16), mesh_shape=mesh_shape)


@functools.cache
def accumulating(micro_batches: int = 3, **options: Any) -> Analysis:
    """Gradients summed over micro-batches of 8; two layers under a loop of their own."""
    step, args = accumulation.make_step(
        batch=8 * micro_batches, abstract=True, micro_batches=micro_batches, **options
    )
    return analyze(step, *args, mesh_shape=(4,))


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


_KINDS: dict[int, tuple[Analysis, tuple[Kind, ...]]] = {}


def kinds(analysis: Analysis) -> tuple[Kind, ...]:
    if id(analysis) not in _KINDS:  # an analysis that is kept has its id to itself
        _KINDS[id(analysis)] = analysis, find_kinds(analysis)
    return _KINDS[id(analysis)][1]


def random_option(kind: Kind, seed: int, state: State | None = None) -> Option:
    random = np.random.default_rng(seed)
    combo = tuple(int(random.integers(len(choices))) for choices in kind.choices)
    return Option(combo, STATES[seed % len(STATES)] if state is None else state)


def named(kind: Kind, *names: str, state: State = State.BLOCK) -> Option:
    """The option that splits the blocks as named, on a mesh of one axis."""
    for combo in itertools.product(*(range(len(choices)) for choices in kind.choices)):
        if kind.show(Option(combo)) == ", ".join(names):
            return Option(combo, state)
    raise AssertionError(f"no option {names}")


def mesh(mesh_shape: tuple[int, ...]) -> Mesh:
    count = int(np.prod(mesh_shape))
    return Mesh(
        np.array(jax.devices()[:count]).reshape(mesh_shape), tuple("xyz"[: len(mesh_shape)])
    )


CASES: dict[str, Callable[[], Analysis]] = {
    "gpt": lambda: model("gpt"),
    "bert": lambda: model("bert"),
    "llama": lambda: model("llama", scan=True, checkpoint=True),
    "moe": lambda: model("moe", layers=4),
    "encoder_decoder": lambda: foreign("encoder_decoder"),
}
