"""Does the step under a plan compute what it computes alone?

Splitting a sum changes its rounding, and a step may magnify rounding: Adam divides a gradient by
its own size, however small, and where that is noise its sign is noise. So the tolerance is
measured. With e the rounding error of the least precise type the step computes with and s that of
its sums, which are accumulated in float32 at least, the unsharded step runs again and again with
every floating-point argument moved by up to 2 e + 64 s of itself, which is several times what a
plan does. An output x may then differ by

    (8 e + 256 s) max |x|  +  4 c,    c = the largest change of x under the moved arguments

If c is a quarter of max |x| or more, x is noise (the gradient of a bias that a softmax cancels):
its size says something, its digits do not, and 16 c is allowed. Both sides run from the same
arguments, the reference on the mesh's first device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cfp.errors import CfpError
from cfp.plan.plan import Plan
from cfp.segments.fill import example_inputs
from cfp.trace import Graph, is_key

MOVED = (2.0, 64.0)  # of e and of s
ALLOWED = (8.0, 256.0)
MAGNIFIED = 4.0
NOISE = 0.25  # of max |x|
NOISE_MAGNIFIED = 16.0
RUNS = 8  # with moved arguments


@dataclass(frozen=True, slots=True)
class Rounding:
    """e and s of the module's docstring."""

    e: float
    s: float

    def times(self, factors: tuple[float, float]) -> float:
        return factors[0] * self.e + factors[1] * self.s


@dataclass(frozen=True, slots=True)
class OutputError:
    """The largest difference in one output, and what is allowed there."""

    path: str
    error: float
    allowed: float

    @property
    def ratio(self) -> float:
        if self.error == 0:
            return 0.0
        return self.error / self.allowed if self.allowed > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Verified:
    """All outputs, the worst first, by their error as a share of what is allowed."""

    outputs: tuple[OutputError, ...]

    @property
    def worst(self) -> OutputError:
        return self.outputs[0]

    def show(self) -> str:
        worst = self.worst
        return (
            f"{len(self.outputs)} outputs agree; the worst, `{worst.path}`, differs by "
            f"{worst.error:.2g} of {worst.allowed:.2g} allowed."
        )


def verify(step: Callable[..., Any], *args: Any, plan: Plan) -> Verified:
    """Runs the step with the plan and without, and compares every output.

    Raises an error that names the worst output where they differ by more than rounding. Shapes in
    place of arrays are filled with random values.
    """
    plan = plan.bind(step, *args)
    assert plan.bound is not None
    graph = plan.bound.analysis.graph
    return run_alone(step, args, graph, plan.mesh.devices.flat[0]).verify(plan)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a step computes alone, from given arguments and from those moved. Many plans may be
    compared with it."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    paths: tuple[str, ...]
    expected: list[Any]
    moved: list[list[Any]]
    rounding: Rounding

    def verify(self, plan: Plan) -> Verified:
        """Runs the step under a plan and compares."""
        planned = plan.jit(self.step, donate_argnums=())
        got = jax.device_get(jax.tree.leaves(planned(*plan.place(*self.args))))
        rows = zip(self.paths, self.expected, got, zip(*self.moved, strict=True), strict=True)
        errors = [compare(path, x, y, moved, self.rounding) for path, x, y, moved in rows]
        errors.sort(key=lambda error: error.ratio, reverse=True)
        wrong = [error for error in errors if not error.ratio <= 1]
        if wrong:
            raise CfpError(
                f"The plan `{plan.name}` changes what the step computes: `{wrong[0].path}` "
                f"differs by {wrong[0].error:.3g}, of which rounding explains "
                f"{wrong[0].allowed:.3g} ({len(wrong)} of {len(errors)} outputs differ). This is a "
                "bug of cfp or of the compiler: please report it with the plan file."
            )
        return Verified(tuple(errors))


def run_alone(
    step: Callable[..., Any], args: Sequence[Any], graph: Graph, device: jax.Device
) -> Reference:
    """Runs the step unsharded on one device, and again with moved arguments."""
    given = jax.device_put(fill(graph, args), device)
    alone = jax.jit(lambda *a: step(*a))  # a function of its own: donates nothing

    def run(args: Any) -> list[Any]:
        return jax.device_get(jax.tree.leaves(alone(*args)))  # type: ignore[no-any-return]

    moved = [run(move(graph, given, seed)) for seed in range(RUNS)]
    return Reference(step, given, graph.output_paths, run(given), moved, rounding_of(graph))


def fill(graph: Graph, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with arrays in place of shapes."""
    leaves, tree = jax.tree.flatten(tuple(args))
    examples = None
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            if examples is None:
                examples = example_inputs(graph, graph.inputs)
            leaves[i] = examples[i]
    filled: tuple[Any, ...] = jax.tree.unflatten(tree, leaves)
    return filled


def rounding_of(graph: Graph) -> Rounding:
    """From the floating-point types of all tensors of the step."""
    finfo: Any = jnp.finfo
    types = {value.dtype for value in graph.values}
    found = [float(finfo(t).eps) for t in types if jnp.issubdtype(t, jnp.inexact)]
    e = max(found, default=0.0)
    return Rounding(e, min(e, float(np.finfo(np.float32).eps)))


def move(graph: Graph, args: Sequence[Any], seed: int) -> Any:
    """The arguments with every floating-point number moved a little."""
    random = np.random.default_rng(seed)
    distance = rounding_of(graph).times(MOVED)

    def moved(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            return leaf
        noise = random.uniform(-1.0, 1.0, jnp.shape(leaf)) * distance
        return jnp.asarray(leaf * (1 + noise.astype(np.float32))).astype(jnp.result_type(leaf))

    return jax.tree.map(moved, tuple(args))


def compare(
    path: str, expected: Any, got: Any, moved: Sequence[Any], rounding: Rounding
) -> OutputError:
    """One output. Numbers that are not finite must be the same on both sides."""
    if is_key(expected.dtype):
        expected, got = jax.random.key_data(expected), jax.random.key_data(got)
        moved = [jax.random.key_data(m) for m in moved]
    x, y = _numbers(expected), _numbers(got)
    others = [_numbers(m) for m in moved]
    if not x.size:
        return OutputError(path, 0.0, 0.0)
    finite = np.isfinite(x)
    same = np.array_equal(x[~finite], y[~finite], equal_nan=True) and np.isfinite(y[finite]).all()
    if not same:
        return OutputError(path, float("inf"), 0.0)

    def largest(difference: Any) -> float:
        return float(np.max(np.abs(difference), where=np.isfinite(difference), initial=0.0))

    kept = x[finite]
    change, size = max(largest(kept - other[finite]) for other in others), largest(kept)
    allowed = change * (MAGNIFIED if change < NOISE * size else NOISE_MAGNIFIED)
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        allowed += rounding.times(ALLOWED) * size
    return OutputError(path, largest(kept - y[finite]), allowed)


def _numbers(array: Any) -> Any:
    array = np.asarray(array)
    if np.iscomplexobj(array):
        return array.astype(np.complex128)
    return array.astype(np.float64)
