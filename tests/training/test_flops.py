"""The model's FLOPs, against formulas written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cfp import models
from cfp.trace import trace
from cfp.training.flops import model_flops


@pytest.mark.parametrize("options", [{}, {"scan": True}, {"checkpoint": True}])
def test_flops_are_the_models(options: dict[str, bool]) -> None:
    """Forward once, backward twice; neither loops nor recomputation change it."""
    c = models.config("gpt", **options)
    step, args = models.make_step(c, abstract=True)
    tokens = c.batch * c.seq
    layer = 24 * tokens * c.hidden**2 + 4 * tokens * c.seq * c.hidden
    expected = 3 * (c.layers * layer + 2 * tokens * c.hidden * c.vocab)
    assert model_flops(trace(step, *args)) == expected


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2)])
def test_flops_of_convolutions(stride: int, groups: int) -> None:
    """The windows of neighbours overlap, and with a stride the gradient has holes. The first
    convolution has no gradient of what it reads: that is the batch."""
    batch, size, window, channels = 4, 16, 3, 8
    layout = ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, weight: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            "SAME",
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.sum(conv(jnp.tanh(conv(x, weights[0])), weights[1]) ** 2)

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    weight = jax.ShapeDtypeStruct((window, window, channels // groups, channels), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, size, size, channels), jnp.float32)
    of_one = 2 * window**2 * channels**2 / groups * batch
    first, second = of_one * (size // stride) ** 2, of_one * (size // stride**2) ** 2
    assert model_flops(trace(step, [weight, weight], x)) == 2 * first + 3 * second
