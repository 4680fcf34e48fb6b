"""Convolutions over NHWC images: a classifier and a U-Net."""

from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from ..training import arguments, cross_entropy, generator, noise, random_ids, train_step
from .layers import dense, dense_init

SIZE, COLOURS, CHANNELS, CLASSES = 16, 4, 12, 8
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(layers=2, batch=8, abstract=False):
    """Convolutions, a max-pool after the first, then a dense layer over what is left."""
    rng = generator()
    params = {
        "convs": [_kernel(rng, *pair) for pair in pairwise([COLOURS] + [CHANNELS] * layers)],
        "head": dense_init(rng, (SIZE // 2) ** 2 * CHANNELS, CLASSES),
    }
    data = {"image": _images(rng, batch), "label": random_ids(rng, CLASSES, batch)}

    def loss_fn(params, batch):
        x = batch["image"]
        for i, kernel in enumerate(params["convs"]):
            x = jax.nn.relu(_conv(x, kernel))
            if i == 0:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(dense(params["head"], x.reshape(len(x), -1)), batch["label"])

    return train_step(loss_fn), arguments(params, data, abstract=abstract)


def unet(layers=2, batch=8, abstract=False):
    """Denoises: `layers` levels down by strided and up by transposed convolutions, with skips."""
    rng = generator()
    pairs = list(pairwise(CHANNELS * 2**level for level in range(layers + 1)))
    params = {
        "stem": _kernel(rng, COLOURS, CHANNELS),
        "down": [_kernel(rng, small, large) for small, large in pairs],
        "up": [_kernel(rng, large, small) for small, large in pairs],
        "merge": [_kernel(rng, 2 * small, small) for small, _ in pairs],
        "head": _kernel(rng, CHANNELS, COLOURS),
    }
    clean = _images(rng, batch)
    data = {"clean": clean, "noisy": clean + 0.5 * _images(rng, batch)}

    def forward(params, x):
        x = jax.nn.relu(_conv(x, params["stem"]))
        skips = []
        for kernel in params["down"]:
            skips.append(x)
            x = jax.nn.relu(_conv(x, kernel, stride=2))
        levels = zip(params["up"], params["merge"], skips, strict=True)
        for up, merge, skip in reversed(list(levels)):
            x = lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=NHWC)
            x = jax.nn.relu(_conv(jnp.concatenate([x, skip], axis=-1), merge))
        return _conv(x, params["head"])

    def loss_fn(params, batch):
        return jnp.mean((forward(params, batch["noisy"]) - batch["clean"]) ** 2)

    return train_step(loss_fn), arguments(params, data, abstract=abstract)


def _images(rng, batch):
    return noise(rng, (batch, SIZE, SIZE, COLOURS))


def _kernel(rng, channels_in, channels_out):
    return noise(rng, (3, 3, channels_in, channels_out), (9 * channels_in) ** -0.5)


def _conv(x, kernel, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=NHWC)
