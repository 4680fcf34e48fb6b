"""Steps in users' habits, from the first plan to training with it.

Each is planned in a process of its own. The plan's file then serves both kinds of meshes, steps
that donate and steps that do not, and arguments that are placed and that are as they come. One test
does all of it per step, so that nothing is planned twice.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, Mesh

import cfp
from cfp.trace.calling import PLAIN
from tests.first_contact.meshes import mesh
from tests.first_contact.steps import STEPS, UserStep

TRAINED = 3  # steps
ROUNDING = 2e-3  # of a loss: Adam magnifies rounding, and bf16 has little precision
# axes, and whether the step donates; the fourth of these, a donating step on Explicit axes, is
# trained on the other meshes
MANNERS = ((AxisType.Auto, False), (AxisType.Auto, True), (AxisType.Explicit, False))
# other meshes, each with the habit that is planned and verified there: that takes seconds, so that
# the other habits are trained there under a template
OTHER_MESHES = {(1,): "nnx_live", (2, 2): "plain_accumulating"}


@pytest.fixture(autouse=True, scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX keeps what it compiles in a folder, as for users who start again. That saves every second
    compilation here: a step that is made anew, and arguments that nobody has placed, are new to
    `jax.jit` and give a program that is not."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.1,  # loading takes half of that
    }
    before = {name: jax.config.values[name] for name in settings}
    compilation_cache.reset_cache()  # JAX looks at the setting once, when it first compiles
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.parametrize("habit", STEPS)
def test_planned_saved_loaded_trained_verified(habit: str, tmp_path: Path) -> None:
    alone = losses_alone(habit)
    assert alone[-1] < alone[0]
    file = planned_elsewhere(habit, (2,), tmp_path)
    for kind, donates in MANNERS:
        trains(habit, file, mesh((2,), kind), alone, donates=donates)
    verified_and_used_without_cfp(habit, file, mesh((2,), AxisType.Explicit), alone)


@pytest.mark.parametrize("habit", STEPS)
@pytest.mark.parametrize("shape", OTHER_MESHES)
def test_on_one_device_and_on_two_axes(habit: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    on = mesh(shape, AxisType.Explicit)
    alone = losses_alone(habit)
    planned = habit == OTHER_MESHES[shape]
    if planned:
        file = planned_elsewhere(habit, shape, tmp_path)
    else:
        file = tmp_path / "plan.json"
        user = STEPS[habit](False)
        cfp.templates.megatron(user.step, *user.args, mesh=on).save(file)
    trains(habit, file, on, alone, donates=True)
    if planned:
        verified_and_used_without_cfp(habit, file, on, alone)


def planned_elsewhere(habit: str, shape: tuple[int, ...], folder: Path) -> Path:
    """The file of a plan that another process has made."""
    file = folder / "plan.json"
    sizes = "x".join(map(str, shape))
    command = [sys.executable, "-m", "tests.first_contact.planning", habit, sizes, str(file)]
    subprocess.run(command, check=True)
    return file


@functools.cache
def losses_alone(habit: str) -> list[float]:
    """The losses of a step that is trained as its user wrote it."""
    user = STEPS[habit](False)
    return losses(user, user.step, user.args)


def losses(user: UserStep, call: Any, args: tuple[Any, ...]) -> list[float]:
    found = []
    for _ in range(TRAINED):
        args, loss = user.carry(args, call(*args))
        found.append(float(loss))
    return found


def trains(habit: str, file: Path, on: Mesh, alone: list[float], *, donates: bool) -> None:
    """Trains from arguments that are placed, under `jax.set_mesh`, and from such as they come."""
    user = STEPS[habit](donates)
    plan = cfp.load(file, mesh=on)
    planned = plan.jit(user.step)
    given = arrays_of(user.args)
    with jax.set_mesh(on):
        args = plan.place(*plan.place(*user.args))
        assert all(array.sharding.mesh == on for array in arrays_of(args))
        np.testing.assert_allclose(losses(user, planned, args), alone, rtol=ROUNDING)
    # what is placed is a copy: the user's arrays are still there, whatever was donated
    assert not any(array.is_deleted() for array in given)
    fresh = STEPS[habit](donates)
    results = jax.tree.leaves(planned.lower(*fresh.args).out_info)
    assert all(result.sharding.mesh == on for result in results)
    np.testing.assert_allclose(losses(fresh, planned, fresh.args), alone, rtol=ROUNDING)


def verified_and_used_without_cfp(habit: str, file: Path, on: Mesh, alone: list[float]) -> None:
    user = STEPS[habit](False)
    with jax.set_mesh(on):
        plan = cfp.load(file, mesh=on).bind(user.step, *user.args)
        verified = cfp.verify(user.step, *user.args, plan=plan)
    assert len(verified.outputs) > 1  # the loss and the new state, live objects' too
    # where arguments are no arrays, the shardings are those of the arrays that the library finds
    calling = plan.known("test").calling
    jitted = jax.jit(
        user.step if calling is PLAIN else calling.pure(user.step),
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    arrays = jax.device_put(calling.arrays(user.args), plan.in_shardings)
    results = calling.results(user.args, jitted(*arrays))
    np.testing.assert_allclose(float(user.carry(user.args, results)[1]), alone[0], rtol=ROUNDING)


def arrays_of(args: tuple[Any, ...]) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
