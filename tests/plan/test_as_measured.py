"""The step that users run under a plan is the program that was measured for it.

Both are compiled here: `plan.jit(step)` and the full step as a worker has it. What a compiler may
decide in one way or another, it must not decide otherwise in the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import cfp
from cfp.layouts import auto_mesh
from cfp.layouts.state import State
from cfp.plan.assemble import assemble_plan
from cfp.profile.measure.full_step import whole_step
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.lower import fills, lower
from cfp.profile.runners.executable import executable_of
from cfp.profile.runners.executable import lower as lower_job
from cfp.profile.runners.job import Job
from cfp.search.compose import compose
from tests.planning.invented import invented_profile
from tests.profile.cases import kinds, mesh, random_option, shape

DEVICES = 4
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def rivals() -> Made:
    """Two networks with an optimizer each, as a GAN has them: the second one's gradient is of the
    first one's new parameters."""
    optimizer = optax.adam(1e-3)

    def network(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w[0]) @ w[1]

    def step(state: Any, real: Any, noise: Any) -> Any:
        maker, judge, maker_state, judge_state = state

        def judged(judge: Any) -> Any:
            made = jax.lax.stop_gradient(network(maker, noise))
            return jnp.mean(jax.nn.softplus(network(judge, made) - network(judge, real)))

        loss, grads = jax.value_and_grad(judged)(judge)
        updates, judge_state = optimizer.update(grads, judge_state)
        judge = optax.apply_updates(judge, updates)

        def fooled(maker: Any) -> Any:
            return -jnp.mean(network(judge, network(maker, noise)))

        grads = jax.grad(fooled)(maker)
        updates, maker_state = optimizer.update(grads, maker_state)
        return (optax.apply_updates(maker, updates), judge, maker_state, judge_state), loss

    def weights(inner: int, out: int) -> Any:
        return shape(inner, 64), shape(64, out)

    maker, judge = weights(8, 16), weights(16, 1)
    states = jax.eval_shape(optimizer.init, maker), jax.eval_shape(optimizer.init, judge)
    return jax.jit(step, donate_argnums=0), (
        (maker, judge, *states),
        shape(16, 16),
        shape(16, 8),
    )


def stacked_layers() -> Made:
    """Layers under `scan`, with an optimizer whose updates have nothing but a sign."""
    optimizer = optax.lion(1e-3)

    def step(params: Any, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            def layer(x: Any, w: Any) -> Any:
                return x + jax.nn.silu(x @ w[0]) @ w[1], None

            return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = shape(4, 16, 32), shape(4, 32, 16)
    state = jax.eval_shape(optimizer.init, params)
    return jax.jit(step, donate_argnums=(0, 1)), (params, state, shape(16, 8, 16))


def measured_bytes(plan: cfp.Plan) -> int:
    """What the program that is measured for a plan needs."""
    on = auto_mesh(plan.mesh)
    bound = plan.known("test")
    cut = whole_step(bound.analysis)
    module = lower(cut, bound.layouts, on)
    job = Job("key", "name", module, fills(cut, bound.layouts), dict(cut.feedback))
    lowered, _ = lower_job(job, on)
    return executable_of(lowered.compile(), job, on).memory.total_bytes


def test_a_template() -> None:
    step, args = stacked_layers()
    plan = cfp.templates.zero1(step, *args, mesh=mesh((DEVICES,)))
    assert plan.memory_bytes() == measured_bytes(plan)


@pytest.mark.parametrize("made", [stacked_layers, rivals])
@pytest.mark.parametrize("seed", range(2))
def test_a_plan_of_options(made: Callable[[], Made], seed: int) -> None:
    """Under ZeRO-1 new parameters are made split, and brought together last."""
    step, args = made()
    analysis = cfp.analyze(step, *args, mesh_shape=(DEVICES,))
    found = kinds(analysis)
    interfaces = find_interfaces(analysis, found)
    options = [random_option(found[s.kind], seed, State.ZERO1) for s in analysis.segments]
    plan = assemble_plan(step, analysis, mesh((DEVICES,)), interfaces, options, name="drawn")
    assert plan.memory_bytes() == measured_bytes(plan)


def test_the_state_of_an_optimizer_that_no_segment_has_is_predicted() -> None:
    """The first network's gradient is summed in several segments, so that its update is in none."""
    step, args = rivals()
    analysis = cfp.analyze(step, *args, mesh_shape=(DEVICES,))
    profile = invented_profile(analysis)
    graph, homes = analysis.graph, profile.interfaces.homes
    alone = [value for value in graph.inputs if value not in homes and graph.values[value].shape]
    assert {graph.input_paths[graph.inputs.index(value)][:8] for value in alone} == {"state[2]"}
    state_bytes = 2 * 4 * (8 * 64 + 64 * 16)
    composition = compose(analysis, profile)
    everywhere = replace(profile.interfaces, homes={**homes, **dict.fromkeys(alone, (0, None))})
    without = compose(analysis, replace(profile, interfaces=everywhere))
    first = (0,) * len(composition.kinds)
    assert composition.memory_bytes(first) - without.memory_bytes(first) == state_bytes
