"""Train: run a step over and over, what it returns going round into its arguments.

    args[0]      as given, placed as the plan wants them
    args[i + 1]  args[i], with results in place of the arguments they replace (`find_feedback`), and
                 with what the next of `batches` holds in place of the arguments it names

An argument that is fed back whole is donated. The seconds of a step are those from its call to its
last result: compiling is in the first step's, making a batch in none.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding, SingleDeviceSharding

from cfp.blocks.feedback import TRAINS_NOTHING, find_feedback
from cfp.blocks.parameters import find_parameters
from cfp.errors import CfpError
from cfp.layouts import real_mesh, sharding
from cfp.plan import Plan
from cfp.plan.bound import jit_bound
from cfp.trace import Graph, trace
from cfp.trace.paths import argument_names
from cfp.trace.runtime import without_mesh
from cfp.training.flops import model_flops
from cfp.training.peaks import peak_flops, product_dtype
from cfp.training.summary import Training, TrainStep

_OUT_OF_MEMORY = (
    "The step needs more memory than a device has: train with a plan that splits more, on more "
    "devices, or with a smaller batch."
)

Batch = Mapping[str, Any]  # new values of arguments, by their names in the step's signature


def train(
    step: Callable[..., Any],
    args: Iterable[Any],
    *,
    plan: Plan | None = None,
    steps: int,
    batches: Iterable[Batch] | None = None,
    tokens: int | None = None,
    on_step: Callable[[TrainStep], None] | None = None,
) -> Training:
    """Trains for `steps` steps, under a plan or, without one, on JAX's first device.

    `args` are those of the first step; they are copied, not used up. Each of `batches` renews the
    arguments it names, as {"batch": ..., "key": ...}, before a step; those that it does not name
    and that no result replaces stay as given. `tokens` is how many a step trains on.
    """
    args = tuple(args)
    loop = prepare(step, *args, plan=plan, tokens=tokens)
    done: list[TrainStep] = []
    for one in loop.run(args, steps=steps, batches=batches):
        done.append(one)
        if on_step is not None:
            on_step(one)
    return loop.training.after(done)


def prepare(
    step: Callable[..., Any],
    *args: Any,
    plan: Plan | None = None,
    device: jax.Device | None = None,
    tokens: int | None = None,
) -> TrainLoop:
    """Returns the step made ready to train, from arrays or shapes; nothing runs or compiles yet."""
    if plan is None:
        graph = trace(step, *args)
        feedback = find_feedback(graph, find_parameters(graph))
        device = device or jax.devices()[0]
        where: list[Sharding] = [SingleDeviceSharding(device)] * len(graph.inputs)
        moved: frozenset[int] = frozenset()
    else:
        plan = plan.bind(step, *args)
        assert plan.bound is not None
        graph, layouts = plan.bound.analysis.graph, plan.bound.layouts
        feedback = find_feedback(graph, plan.bound.analysis.grouping.parameters)
        device = real_mesh(plan.mesh, "train").devices.flat[0]
        where = [sharding(plan.mesh, layout) for layout in layouts.inputs]
        moved = frozenset(r for r, a in feedback.items() if layouts.outputs[r] != layouts.inputs[a])
    if not feedback:
        raise CfpError(TRAINS_NOTHING)
    names = argument_names(step, len(args))
    kept = {argument for result, argument in feedback.items() if result not in moved}
    spans = _spans(graph)
    donated = [i for i, span in enumerate(spans) if len(span) and kept.issuperset(span)]
    loss = _find_loss(graph, feedback)
    replaced = frozenset(feedback.values())
    changing = [not replaced.isdisjoint(span) for span in spans]
    others = [len(span) > 0 and replaced.isdisjoint(span) for span in spans]
    return TrainLoop(
        training=Training(
            plan=None if plan is None else plan.name,
            mesh=None if plan is None else dict(plan.mesh.shape),
            devices=1 if plan is None else plan.mesh.size,
            device_kind=str(device.device_kind),
            fed_back=tuple(itertools.compress(names, changing)),
            as_given=tuple(itertools.compress(names, others)),
            loss_path=None if loss is None else graph.output_paths[loss],
            flops=model_flops(graph),
            tokens=tokens,
            predicted_s=plan.predicted.time_s if plan is not None and plan.predicted else None,
            peak_flops=peak_flops(str(device.device_kind), product_dtype(graph)),
        ),
        call=_jit(graph, step, donated)
        if plan is None
        else jit_bound(plan.known("train"), plan.mesh, donated),
        graph=graph,
        names=tuple(names),
        spans=spans,
        donated=frozenset(donated),
        feedback=feedback,
        moved=moved,
        where=tuple(where),
        loss=loss,
    )


@dataclass(frozen=True, slots=True, eq=False)
class TrainLoop:
    """A step ready to train. `training` is what is known before it runs.

    `spans` are the positions of each argument's leaves; `moved` the results that do not come out
    as the arguments they replace must lie; `where` is how each leaf of the arguments must.
    """

    training: Training
    call: Callable[..., Any]
    graph: Graph
    names: tuple[str, ...]
    spans: tuple[range, ...]
    donated: frozenset[int]
    feedback: Mapping[int, int]
    moved: frozenset[int]
    where: tuple[Sharding, ...]
    loss: int | None

    def shardings(self, number: int) -> Any:
        """Returns the sharding that an argument must have, as a pytree of shardings."""
        tree: Any = self.graph.in_tree
        return jax.tree.unflatten(
            tree.children()[number], [self.where[position] for position in self.spans[number]]
        )

    def run(
        self, args: Iterable[Any], *, steps: int, batches: Iterable[Batch] | None = None
    ) -> Iterator[TrainStep]:
        """Yields each step as it is done, as `train` says. A loss that is not finite ends it with
        an error.

        An argument that the first batch renews may be given as shapes. One that nobody else holds
        is freed as it is placed.
        """
        if steps < 1:
            raise CfpError(f"`steps` is {steps}: train for at least one.")
        return self._steps(tuple(args), steps, iter(batches) if batches is not None else None)

    def _steps(
        self, given: tuple[Any, ...], steps: int, batches: Iterator[Batch] | None
    ) -> Iterator[TrainStep]:
        leaves, tree = jax.tree.flatten(self.graph.calling.arrays(given))
        del given  # held by no one else, a leaf is now freed as soon as it is copied
        if tree != self.graph.in_tree:
            raise CfpError(f"The step takes {self.graph.in_tree}, not {tree}.")
        leaves = self._place(leaves)
        ready: Any = jax.block_until_ready
        last: float | None = None
        for number in range(1, steps + 1):
            if batches is not None:
                batch = next(batches, None)
                if batch is None:
                    raise CfpError(
                        f"The batches ended after {number - 1} steps of {steps}: give more of "
                        "them, or train for fewer steps."
                    )
                self._renew(leaves, batch)
            if number == 1:
                self._check_arrays(leaves)
            args = ready(jax.tree.unflatten(tree, leaves))
            start = time.perf_counter()
            try:
                with without_mesh():
                    results = ready(jax.tree.leaves(self.call(*args)))
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                raise CfpError(_OUT_OF_MEMORY) from error
            seconds = time.perf_counter() - start
            for result, argument in self.feedback.items():
                array = results[result]
                if result in self.moved:
                    array = jax.device_put(array, self.where[argument])
                leaves[argument] = array
            loss = None if self.loss is None else float(results[self.loss])
            if loss is not None and not math.isfinite(loss):
                raise CfpError(_not_finite(number, loss, last, self.training.plan))
            last = loss
            del args, results
            yield TrainStep(number, loss, seconds)

    def _place(self, leaves: list[Any]) -> list[Any]:
        """Returns the arguments as the step wants them. What is donated is copied first, since
        placing may share memory."""
        donated = {position for number in self.donated for position in self.spans[number]}
        for position, where in enumerate(self.where):
            leaf = leaves[position]
            if isinstance(leaf, jax.ShapeDtypeStruct):
                continue
            if position in donated and isinstance(leaf, jax.Array):
                leaf = leaf.copy()
            leaves[position] = jax.device_put(leaf, where)
        return leaves

    def _renew(self, leaves: list[Any], batch: Batch) -> None:
        tree: Any = self.graph.in_tree
        for name, value in batch.items():
            if name not in self.names:
                raise CfpError(
                    f"A batch names `{name}`, which the step does not take: it takes "
                    f"{', '.join(self.names)}."
                )
            number = self.names.index(name)
            fresh, structure = jax.tree.flatten(value)
            if structure != tree.children()[number]:
                raise CfpError(
                    f"A batch's `{name}` is {structure}; the step takes {tree.children()[number]}."
                )
            for position, leaf in zip(self.spans[number], fresh, strict=True):
                wanted = self.graph.values[self.graph.inputs[position]].shape
                if jnp.shape(leaf) != wanted:
                    raise CfpError(
                        f"A batch's `{self.graph.input_paths[position]}` has shape "
                        f"{list(jnp.shape(leaf))}; the step is for {list(wanted)}: give every "
                        "batch the same shapes."
                    )
                leaves[position] = jax.device_put(leaf, self.where[position])

    def _check_arrays(self, leaves: list[Any]) -> None:
        for path, leaf in zip(self.graph.input_paths, leaves, strict=True):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise CfpError(f"`{path}` is a shape: training needs arrays, so give one.")


def _find_loss(graph: Graph, feedback: Mapping[int, int]) -> int | None:
    """Returns the result that is the loss: called so or nearly so, or else the first floating
    scalar."""
    scalars = [
        position
        for position, value in enumerate(graph.outputs)
        if position not in feedback
        and not graph.values[value].shape
        and jnp.issubdtype(graph.values[value].dtype, jnp.floating)
    ]

    def rank(position: int) -> int:
        path = graph.output_paths[position].lower()
        return 0 if path.endswith(("['loss']", ".loss")) else 1 if "loss" in path else 2

    return min(scalars, key=rank, default=None)


def _spans(graph: Graph) -> tuple[range, ...]:
    tree: Any = graph.in_tree
    ends = itertools.accumulate((child.num_leaves for child in tree.children()), initial=0)
    return tuple(range(start, end) for start, end in itertools.pairwise(ends))


def _jit(graph: Graph, step: Callable[..., Any], donated: list[int]) -> Callable[..., Any]:
    # a function of its own: what a jitted step itself donates is not what is fed back
    return jax.jit(graph.calling.pure(step), donate_argnums=tuple(donated))


def _not_finite(number: int, loss: float, last: float | None, plan: str | None) -> str:
    before = "" if last is None else f" and was {last:.4g} before it"
    blame = "" if plan is None else "; `cfp verify` tells whether the plan is to blame"
    return (
        f"The loss is {loss} at step {number}{before}, so training stopped: lower the learning "
        f"rate or check the data{blame}."
    )
