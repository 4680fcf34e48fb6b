"""Steps in users' habits, from the first plan to training with it.

Each is planned once, in a process of its own; the plan's file then serves both kinds of meshes. All
pairs of the other choices (donation, arguments placed or as they come) are tried where the library
has a calling of its own. One test does all of it per step, so that nothing is planned twice.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import cfp
from tests.first_contact.meshes import mesh
from tests.first_contact.steps import STEPS, UserStep

TRAINED = 3  # steps
ROUNDING = 2e-3  # of a loss: Adam magnifies rounding, and bf16 has little precision
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
OWN_CALLING = ("nnx_live", "equinox_as_is")  # arguments that are not arrays alone


@pytest.mark.parametrize("habit", STEPS)
def test_planned_saved_loaded_trained_verified(habit: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    command = [sys.executable, "-m", "tests.first_contact.planning", habit, str(file)]
    subprocess.run(command, check=True)
    user = STEPS[habit](False)
    alone = losses(user, user.step, user.args)
    assert alone[-1] < alone[0]
    trains_placed(habit, file, EXPLICIT, alone, donates=True)
    trains_as_given(habit, file, AUTO, alone, donates=False)
    if habit in OWN_CALLING:
        trains_placed(habit, file, AUTO, alone, donates=False)
        trains_as_given(habit, file, EXPLICIT, alone, donates=True)
    verified_and_used_without_cfp(habit, file, alone)
    for shape in ((1,), (2, 2)):
        user = STEPS[habit](False)
        plan = cfp.templates.megatron(user.step, *user.args, mesh=mesh(shape, EXPLICIT))
        found = losses(user, plan.jit(user.step), plan.place(*user.args), steps=1)
        np.testing.assert_allclose(found, alone[:1], rtol=ROUNDING)


def losses(user: UserStep, call: Any, args: tuple[Any, ...], steps: int = TRAINED) -> list[float]:
    found = []
    for _ in range(steps):
        args, loss = user.carry(args, call(*args))
        found.append(float(loss))
    return found


def trains_placed(
    habit: str, file: Path, kind: AxisType, alone: list[float], *, donates: bool
) -> None:
    user, on = STEPS[habit](donates), mesh((2,), kind)
    plan = cfp.load(file, mesh=on)
    planned = plan.jit(user.step)
    given = arrays_of(user.args)
    with jax.set_mesh(on):
        args = plan.place(*plan.place(*user.args))
        assert all(array.sharding.mesh == on for array in arrays_of(args))
        found = losses(user, planned, args)
    np.testing.assert_allclose(found, alone, rtol=ROUNDING)
    # what is placed is a copy: the user's arrays are still there, whatever was donated
    assert not any(array.is_deleted() for array in given)
    results = jax.tree.leaves(planned.lower(*user.args).out_info)
    assert all(result.sharding.mesh == on for result in results)


def trains_as_given(
    habit: str, file: Path, kind: AxisType, alone: list[float], *, donates: bool
) -> None:
    user = STEPS[habit](donates)
    plan = cfp.load(file, mesh=mesh((2,), kind))
    found = losses(user, plan.jit(user.step), user.args)
    np.testing.assert_allclose(found, alone, rtol=ROUNDING)


def verified_and_used_without_cfp(habit: str, file: Path, alone: list[float]) -> None:
    user, on = STEPS[habit](False), mesh((2,), EXPLICIT)
    with jax.set_mesh(on):
        plan = cfp.load(file, mesh=on).bind(user.step, *user.args)
        verified = cfp.verify(user.step, *user.args, plan=plan)
    assert len(verified.outputs) > 1  # the loss and the new state, live objects' too
    # the shardings are those of the arrays that the library itself finds in its arguments
    calling = plan.known("test").calling
    jitted = jax.jit(
        calling.pure(user.step), in_shardings=plan.in_shardings, out_shardings=plan.out_shardings
    )
    arrays = jax.device_put(calling.arrays(user.args), plan.in_shardings)
    results = calling.results(user.args, jitted(*arrays))
    np.testing.assert_allclose(float(user.carry(user.args, results)[1]), alone[0], rtol=ROUNDING)


def arrays_of(args: tuple[Any, ...]) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
