"""Plans from one GPU, for more: `make test-gpu` runs these on a machine that has one.

They check what no double can: that XLA's stand-in topology compiles the whole mesh's program, that
its kernels are in the recording, and that the replay with free collectives is what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import cfp
from cfp.errors import CfpError
from cfp.links.replay import replay
from cfp.profile.measure.measurement import Measurement, Provenance
from cfp.profile.measure.store import Store
from cfp.profile.runners.stand_in import LocalDevices, find_gpus
from tests.links.test_replay import FREE

pytestmark = pytest.mark.gpu
# one of 8 devices computes for about 20 ms on an H200, and memory is the limit: where power is, the
# clock varies, and the same kernels took up to 15 % longer in one run than in another
WIDTH, ROWS, LAYERS = 256, 2**23, 4
RATE = 1e-3
AGREES = 0.05  # of the measured time: what the kernels of a long step leave out are its gaps
COMPOSES = 0.1  # of what a full step computes
HIDES = 0.15  # of the full step: in it collectives hide behind kernels of other segments, too


@pytest.fixture(scope="module")
def local() -> LocalDevices:
    try:
        return find_gpus()
    except CfpError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def flags() -> Iterator[None]:
    """XLA's flags are the usual ones: those of other tests make programs slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "")
        yield


def large_step() -> tuple[Any, tuple[Any, ...]]:
    """Returns a step of tens of milliseconds, in which the host is ahead of the device: layers of
    two products, which have few options and compile soon."""
    weights = {
        "up": jax.ShapeDtypeStruct((WIDTH, 2 * WIDTH), jnp.bfloat16),
        "down": jax.ShapeDtypeStruct((2 * WIDTH, WIDTH), jnp.bfloat16),
    }
    batch = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)

    def loss(layers: Any, batch: Any) -> Any:
        hidden = batch
        for layer in layers:
            hidden = hidden + jnp.tanh(hidden @ layer["up"]) @ layer["down"]
        return jnp.mean(jnp.square(hidden.astype(jnp.float32)))

    def step(layers: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(layers, batch)
        return jax.tree.map(lambda w, g: w - RATE * g, layers, gradients), value

    return jax.jit(step, donate_argnums=0), ([weights] * LAYERS, batch)


@pytest.fixture(scope="module")
def planned(
    local: LocalDevices, flags: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[cfp.Plan, Path]:
    cache = tmp_path_factory.mktemp("store")
    step, args = large_step()
    mesh = AbstractMesh((8,), ("x",))
    found = cfp.plan(step, *args, mesh=mesh, links="h200_nvlink", cache_dir=cache, budget="60s")
    return found, cache


def test_a_plan_for_eight(planned: tuple[cfp.Plan, Path], local: LocalDevices) -> None:
    plan, _ = planned
    assert plan.environment.device_kind == local.kind
    assert plan.evidence is not None
    own = plan.evidence.own
    assert own is not None, plan.notes
    assert own.provenance is Provenance.REPLAYED
    assert own.communication_s is not None
    assert own.communication_s > 0


def test_the_replay_with_free_collectives_is_what_was_measured(
    planned: tuple[cfp.Plan, Path],
) -> None:
    _, cache = planned
    with Store.open(cache) as store:
        rows = [Measurement.from_json(one.document) for one in store.entries()]
    steps = [one for one in rows if one.name.startswith("full step") and one.shares is not None]
    assert steps
    for one in steps:
        assert one.shares is not None
        assert one.shares.schedule is not None
        free_s = replay(one.shares.schedule, FREE).time_s
        run_s = one.time_s - one.shares.host_s
        assert free_s == pytest.approx(run_s, rel=AGREES), one.name


def test_another_mesh_takes_kernels_over(planned: tuple[cfp.Plan, Path]) -> None:
    """Some options of 2x4 divide the work as some of 8 do: those are not run again, and what is
    composed of them agrees with the full step, which is."""
    _, cache = planned
    step, args = large_step()
    mesh = AbstractMesh((2, 4), ("x", "y"))
    links = "h200_nvlink,h200_nvlink"
    found = cfp.plan(step, *args, mesh=mesh, links=links, cache_dir=cache, budget="40s")
    assert found.evidence is not None
    assert found.evidence.taken_over > 0
    own, predicted = found.evidence.own, found.predicted
    assert own is not None, found.notes
    assert own.compute_s is not None
    assert predicted is not None
    assert predicted.compute_s == pytest.approx(own.compute_s, rel=COMPOSES)
    assert (1 - AGREES) * own.time_s < predicted.time_s < (1 + HIDES) * own.time_s
