"""Pins: the user's word on how an argument lies."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cfp
from cfp import templates
from cfp.errors import CfpError
from cfp.plan.pins import dotted

from .steps import mesh_of, mlp_args, mlp_step, model


@pytest.mark.parametrize("template", templates.__all__)
def test_pins_are_respected(template: str) -> None:
    make = getattr(templates, template)
    mesh = mesh_of(2, 2)
    pins = {"*.down": P("y", "x"), "params['bias']": P(("x", "y")), "x": P(None, "y")}
    plan = make(mlp_step, *mlp_args(), mesh=mesh, pins=pins)
    (params, x, _), out = plan.in_shardings, plan.out_shardings
    assert params["down"].spec == P("y", "x")
    assert params["bias"].spec == P(("x", "y"))
    assert x.spec == P(None, "y")
    assert out[0]["down"].spec == P("y", "x")
    cfp.verify(mlp_step, *mlp_args(), plan=plan)


def test_state_follows_a_pinned_parameter() -> None:
    step, args = model("gpt")
    pins = {"state.params.head": P("x", "y"), "*.layers.*.up": NamedSharding(mesh_of(2, 2), P("y"))}
    plan = templates.data_parallel(step, *args, mesh=mesh_of(2, 2), pins=pins)
    state, *_ = plan.in_shardings
    for tree in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        assert tree["head"].spec == P("x", "y")
        assert tree["layers"][0]["up"].spec == P("y")
        assert tree["layers"][0]["down"].spec == P()
    cfp.verify(step, *args, plan=plan)


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ({"*.dwn": P()}, r"The pin `\*.dwn` matches no argument.*Did you mean `params\['down'\]`"),
        ({"*.down": P("z")}, "names the mesh axis 'z'; the mesh has x, y"),
        ({"*.down": P("x", "x")}, "uses the mesh axis 'x' twice"),
        ({"*.down": P(None, None, "x")}, "names 3 dims; `params\\['down'\\]` has 2"),
        ({"*.down": P(("y", "x"))}, r"write \('x', 'y'\), the order of the mesh"),
        ({"x": P(None, ("x", "y"))}, None),
        ({"x": 3}, "is 3: give a PartitionSpec"),
        (
            {"*.down": P("x"), "params.d*": P("y")},
            r"The pins `\*.down` and `params.d\*` contradict each other: both match "
            r"`params\['down'\]`",
        ),
        ({"*.down": P("x"), "params.d*": P("x")}, None),
    ],
)
def test_bad_pins(pins: dict[str, Any], reason: str | None) -> None:
    def make() -> Any:
        return templates.data_parallel(mlp_step, *mlp_args(), mesh=mesh_of(2, 2), pins=pins)

    if reason is None:
        make()
    else:
        with pytest.raises(CfpError, match=reason):
            make()


def test_a_pin_that_does_not_divide() -> None:
    args = mlp_args(hidden=6)
    with pytest.raises(CfpError, match=r"dim 1 of `params\['up'\]` into 4 parts; its size 6"):
        templates.data_parallel(mlp_step, *args, mesh=mesh_of(4), pins={"*.up": P(None, "x")})


def test_dotted() -> None:
    assert dotted("state.params['layers'][0]['qkv']") == "state.params.layers.0.qkv"
    assert dotted("*.embed") == "*.embed"


def test_explicit_meshes_are_taken() -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])
    plan = templates.data_parallel(mlp_step, *mlp_args(), mesh=mesh)
    _, loss = plan.jit(mlp_step)(*plan.place(*mlp_args()))
    np.testing.assert_allclose(loss, jax.jit(mlp_step)(*mlp_args())[1], rtol=1e-5)
    with pytest.raises(CfpError, match=r"`mesh` is a int: give a jax.sharding.Mesh"):
        templates.data_parallel(mlp_step, *mlp_args(), mesh=4)  # type: ignore[arg-type]
