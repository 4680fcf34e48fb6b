"""What the arguments of a plan take on one device."""

from __future__ import annotations

import math

import numpy as np

from cfp.plan.tensor import PlannedTensor

_KEYS = {"fry": 8, "rbg": 16, "urbg": 16}  # bytes of a random key, by its kind


def whole_bytes(tensor: PlannedTensor) -> int:
    """Returns the bytes of the whole tensor."""
    return _bytes(tensor.dtype) * math.prod(tensor.shape)


def local_bytes(tensor: PlannedTensor, mesh_shape: tuple[int, ...]) -> int:
    """Returns the bytes that one device holds of the tensor."""
    return _bytes(tensor.dtype) * math.prod(tensor.local(mesh_shape))


def _bytes(dtype: str) -> int:
    """Returns the bytes of one element; 0 for a type that is not known here."""
    if dtype.startswith("key<"):
        return _KEYS.get(dtype[4:-1], 0)
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return 0
