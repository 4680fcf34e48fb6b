"""Sequences are split where the batch cannot be: one long example, and few on many devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cfp
from cfp.blocks import SplitName
from cfp.models import config, make_step
from cfp.planner import NO_SEQUENCE, Analysed, Task, analyse
from cfp.planning.options import Options
from cfp.profile import Effort
from tests.profile.cases import mesh

POSITIONS, WIDTH = 256, 16


def attend(weights: Any, x: Any) -> Any:
    """One example whose positions attend to each other, and a residual layer."""

    def loss(weights: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", x @ weights["query"], x)
        hidden = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), x)
        hidden = hidden + jnp.tanh(hidden) @ weights["out"]
        return jnp.mean(hidden**2)

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def test_one_long_example_is_split_by_its_positions(tmp_path: Path) -> None:
    """The scores, [positions, positions], are most of the memory: the limit is a third of what the
    whole takes, and no plan fits that computes all of them on every device. (What is broadcast to
    their shape may lie whole, because the compiler never makes it.)"""
    random = np.random.default_rng(0)
    shapes = {"query": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
    weights = {n: jnp.asarray(random.normal(0, 0.2, s), jnp.float32) for n, s in shapes.items()}
    args = weights, jnp.asarray(random.normal(size=(1, POSITIONS, WIDTH)), jnp.float32)
    alone = jax.jit(attend).lower(*args).compile().memory_analysis()
    limit = alone.temp_size_in_bytes // 3
    plan = cfp.plan(
        attend,
        *args,
        mesh=mesh((4,)),
        memory_limit=limit,
        budget="60s",
        audit=False,
        isolate=False,
        effort=Effort(warmups=1, repeats=2),
        cache_dir=tmp_path,
    )
    known = plan.known("test")
    graph, layouts = known.analysis.graph, known.layouts.values
    scores = [
        layouts[equation.outputs[0]]
        for equation in graph.equations
        if equation.op.primitive == "dot_general"
        and graph.values[equation.outputs[0]].shape == (1, POSITIONS, POSITIONS)
    ]
    assert scores
    assert (None,) not in scores
    assert plan.memory_bytes() <= limit
    cfp.verify(attend, *args, plan=plan)


def found(batch: int, mesh_shape: tuple[int, ...]) -> Analysed:
    step, args = make_step(config("gpt", batch=batch), abstract=True)
    return analyse(Task(step, args, mesh(mesh_shape), Options(sequence=True), None))


def test_sequence_dims_are_tried_only_where_the_batch_does_not_divide() -> None:
    few, many = found(2, (4,)), found(8, (4,))
    assert few.analysis.sequence
    assert NO_SEQUENCE not in few.notes
    names = {c.split_name for block in few.analysis.blocks for c in block.candidates}
    assert SplitName.SEQUENCE in names
    assert not many.analysis.sequence
    assert NO_SEQUENCE in many.notes
    assert [kind.space for kind in many.analysis.distinct_segments] == [4, 81, 3]
