"""Training steps that are not ours: what users of other libraries write, ready to analyse.

`MODELS` (Hugging Face, Flax NNX, Flax Linen, Equinox) and `PLAIN` (odd plain JAX functions) map a
name to `make(layers=2, batch=8, abstract=False)`, which returns `(step, args)`. A step is pure
and not jitted. It returns `(*carried, loss)`, where `carried` takes the place of its first
arguments in the next call. With `abstract=True` no array is made: every leaf of `args` is a
`ShapeDtypeStruct`.

A library is imported when its model is made, so that collecting tests stays cheap.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .plain import PLAIN

Make = Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]


def _lazy(module: str, name: str = "make") -> Make:
    def make(layers: int = 2, batch: int = 8, abstract: bool = False):
        function = getattr(import_module(f"{__name__}.{module}"), name)
        return function(layers=layers, batch=batch, abstract=abstract)

    return make


MODELS: dict[str, Make] = {
    "hf_gpt2": _lazy("huggingface", "gpt2"),
    "hf_bert": _lazy("huggingface", "bert"),
    "hf_llama": _lazy("huggingface", "llama"),
    "hf_vit": _lazy("huggingface", "vit"),
    "nnx": _lazy("flax_nnx"),
    "linen": _lazy("flax_linen"),
    "equinox": _lazy("equinox_vmap"),
}

__all__ = ["MODELS", "PLAIN", "Make"]
