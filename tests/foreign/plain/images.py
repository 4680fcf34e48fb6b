"""Convolutions over NHWC images: a classifier and a U-Net."""

from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from ..training import arguments, cross_entropy, noise, train_step
from .layers import dense, dense_init

SIZE, COLOURS, CHANNELS, CLASSES = 16, 4, 12, 8
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(layers=2, batch=8, abstract=False):
    """Convolutions, a max-pool after the first, then a dense layer over what is left."""

    def init(key):
        head_key, *keys = jax.random.split(key, 1 + layers)
        sizes = [COLOURS] + [CHANNELS] * layers
        return {
            "convs": [_kernel(*each) for each in zip(keys, sizes[:-1], sizes[1:], strict=True)],
            "head": dense_init(head_key, (SIZE // 2) ** 2 * CHANNELS, CLASSES),
        }

    def loss_fn(params, batch):
        x = batch["image"]
        for i, kernel in enumerate(params["convs"]):
            x = jax.nn.relu(_conv(x, kernel))
            if i == 0:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(dense(params["head"], x.reshape(len(x), -1)), batch["label"])

    def data(key):
        image_key, label_key = jax.random.split(key)
        labels = jax.random.randint(label_key, (batch,), 0, CLASSES)
        return {"image": _images(image_key, batch), "label": labels}

    return train_step(loss_fn), arguments(init, data, abstract=abstract)


def unet(layers=2, batch=8, abstract=False):
    """Denoises: `layers` levels down by strided and up by transposed convolutions, with skips."""

    def init(key):
        keys = iter(jax.random.split(key, 2 + 3 * layers))
        widths = [CHANNELS * 2**level for level in range(layers + 1)]
        pairs = list(pairwise(widths))
        return {
            "stem": _kernel(next(keys), COLOURS, CHANNELS),
            "down": [_kernel(next(keys), small, large) for small, large in pairs],
            "up": [_kernel(next(keys), large, small) for small, large in pairs],
            "merge": [_kernel(next(keys), 2 * small, small) for small, _ in pairs],
            "head": _kernel(next(keys), CHANNELS, COLOURS),
        }

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

    def data(key):
        clean_key, noise_key = jax.random.split(key)
        clean = _images(clean_key, batch)
        return {"clean": clean, "noisy": clean + 0.5 * _images(noise_key, batch)}

    return train_step(loss_fn), arguments(init, data, abstract=abstract)


def _images(key, batch):
    return noise(key, (batch, SIZE, SIZE, COLOURS))


def _kernel(key, channels_in, channels_out):
    return noise(key, (3, 3, channels_in, channels_out), (9 * channels_in) ** -0.5)


def _conv(x, kernel, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=NHWC)
