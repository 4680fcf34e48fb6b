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

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from cfp.blocks.feedback import TRAINS_NOTHING, find_feedback
from cfp.errors import CfpError, PlanWarning
from cfp.layouts import auto_mesh, real_mesh, sharding, whole
from cfp.plan.bound import jit_bound
from cfp.plan.place import place_arrays
from cfp.plan.plan import Plan
from cfp.segments.fill import example_inputs
from cfp.trace import Graph, is_key
from cfp.trace.runtime import without_mesh

# The numbers of the formula above.
MOVED = (2.0, 64.0)  # by how many of e and of s arguments are moved
ALLOWED = (8.0, 256.0)  # by how many of e and of s an output may differ: four times as many
MAGNIFIED = 4.0  # times c: a few runs see less than the largest change there is
NOISE = 0.25  # as a share of max |x|
NOISE_MAGNIFIED = 16.0  # times c, of an output that is noise
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
    """The largest difference in one output, and what is allowed there. Numbers that are not finite,
    alike on both sides, say nothing; they are not among those of its `size` that count."""

    path: str
    error: float
    allowed: float
    size: int = 0
    not_finite: int = 0

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

    @property
    def not_finite(self) -> tuple[OutputError, ...]:
        """Returns the outputs of which some numbers are NaN or infinite, alike on both sides."""
        return tuple(output for output in self.outputs if output.not_finite)

    def check_finite(self) -> None:
        """Raises where nothing of an output could be compared."""
        nothing = [output for output in self.not_finite if output.not_finite == output.size]
        if nothing:
            raise CfpError(
                f"Nothing of `{nothing[0].path}` can be compared: all of it is NaN or infinite, "
                f"with the plan and without ({len(nothing)} of {len(self.outputs)} outputs). Pass "
                "real arguments, for which the step computes finite numbers."
            )

    def show(self) -> str:
        worst = self.worst
        text = (
            f"{len(self.outputs)} outputs agree; the worst, `{worst.path}`, differs by "
            f"{worst.error:.2g} of {worst.allowed:.2g} allowed."
        )
        if not self.not_finite:
            return text
        most = max(self.not_finite, key=lambda output: output.not_finite)
        return (
            f"{text} Not compared is what is NaN or infinite with the plan and without: in "
            f"{len(self.not_finite)} outputs, of `{most.path}` {most.not_finite} of {most.size} "
            "numbers."
        )


def verify(step: Callable[..., Any], *args: Any, plan: Plan) -> Verified:
    """Runs the step with the plan and without, and compares every output.

    Raises an error that names the worst output where they differ by more than rounding, or where
    nothing of an output is finite. Shapes in place of arrays are filled with random values.
    """
    mesh = real_mesh(plan.mesh, "verify")
    plan = plan.bind(step, *args)
    analysis = plan.known("verify").analysis
    graph = analysis.graph
    if not find_feedback(graph, analysis.grouping.parameters):
        warnings.warn(TRAINS_NOTHING, PlanWarning, stacklevel=2)
    return run_alone(step, args, graph, mesh.devices.flat[0], mesh).verify(plan)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a step computes alone, from given arguments and from those moved. Many plans may be
    compared with it."""

    args: tuple[Any, ...]
    paths: tuple[str, ...]
    expected: list[Any]
    moved: list[list[Any]]
    rounding: Rounding

    def verify(self, plan: Plan) -> Verified:
        """Runs the step under a plan that knows it, and compares."""
        planned = jit_bound(plan.known("verify"), plan.mesh, ())
        placed = place_arrays(plan.mesh, plan.arguments, plan.argument_names, self.args)
        with without_mesh():
            got = jax.device_get(jax.tree.leaves(planned(*placed)))
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
        verified = Verified(tuple(errors))
        verified.check_finite()
        return verified


def run_alone(
    step: Callable[..., Any],
    args: Sequence[Any],
    graph: Graph,
    device: jax.Device,
    mesh: Mesh | None = None,
) -> Reference:
    """Runs the step unsharded on one device, and again with moved arguments. The user's arguments
    stay as they are, live objects too.

    A step that itself says how tensors lie cannot run on one device: it runs on `mesh`, from
    arguments that are whole on every device.
    """
    alone = jax.jit(graph.calling.pure(step))  # a function of its own: donates nothing

    def run(args: Any) -> list[Any]:
        return jax.device_get(jax.tree.leaves(alone(*args)))  # type: ignore[no-any-return]

    # told a device alone, JAX still takes the arrays for ones on their former mesh
    where: Sharding = SingleDeviceSharding(device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_mesh())
        if graph.own_constraints and mesh is not None:
            auto = real_mesh(auto_mesh(mesh), "verify")
            stack.enter_context(jax.set_mesh(auto))
            where = sharding(auto, whole(len(mesh.axis_names)))
        given = jax.device_put(fill(graph, args), where)
        moved = [run(move(graph, given, seed)) for seed in range(RUNS)]
        expected = run(given)
    return Reference(given, graph.output_paths, expected, moved, rounding_of(graph))


def fill(graph: Graph, args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments as arrays, random ones in place of shapes."""
    leaves, tree = jax.tree.flatten(graph.calling.arrays(args))
    examples = None
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            if examples is None:
                examples = example_inputs(graph, graph.inputs)
            leaves[i] = examples[i]
    filled: tuple[Any, ...] = jax.tree.unflatten(tree, leaves)
    return filled


def rounding_of(graph: Graph) -> Rounding:
    """Returns the rounding of a step, from the floating-point types of all its tensors."""
    finfo: Any = jnp.finfo
    types = {value.dtype for value in graph.values}
    found = [float(finfo(t).eps) for t in types if jnp.issubdtype(t, jnp.inexact)]
    e = max(found, default=0.0)
    return Rounding(e, min(e, float(np.finfo(np.float32).eps)))


def move(graph: Graph, args: Sequence[Any], seed: int) -> Any:
    """Returns the arguments with every floating-point number moved a little."""
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
    """Returns how one output differs. Numbers that are not finite must be the same on both sides,
    and are counted."""
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
        return OutputError(path, float("inf"), 0.0, x.size)

    def largest(difference: Any) -> float:
        return float(np.max(np.abs(difference), where=np.isfinite(difference), initial=0.0))

    kept = x[finite]
    change, size = max(largest(kept - other[finite]) for other in others), largest(kept)
    allowed = change * (MAGNIFIED if change < NOISE * size else NOISE_MAGNIFIED)
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        allowed += rounding.times(ALLOWED) * size
    return OutputError(path, largest(kept - y[finite]), allowed, x.size, x.size - kept.size)


def _numbers(array: Any) -> Any:
    array = np.asarray(array)
    if np.iscomplexobj(array):
        return array.astype(np.complex128)
    return array.astype(np.float64)
