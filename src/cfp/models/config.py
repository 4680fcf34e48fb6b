"""What a built-in model is made of: one flat, checked value for the four models.

A `Config` is complete: no field is derived later. `cfp.models.config` makes one from a named
size and a few overrides, filling in what follows from them.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from cfp.errors import CfpError

NAMES = ("bert", "gpt", "moe", "llama")
DTYPES = ("float32", "bfloat16")
QKV_LAYOUTS = ("head_major", "stacked")
_POSITIVE = ("layers", "hidden", "heads", "kv_heads", "ffn", "seq", "batch", "vocab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A model, its sizes and how its training step is written.

    `dtype` is what the forward and backward pass compute in; parameters and optimizer state are
    always float32. With `scan` the layers run under `lax.scan` over stacked parameters; with
    `checkpoint` each layer is recomputed in the backward pass.
    """

    model: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int  # fewer than `heads` is grouped-query attention (llama)
    ffn: int
    seq: int
    batch: int
    vocab: int
    experts: int = 0  # moe only
    dtype: str = "float32"
    dropout: float = 0.0  # above 0, the step takes a PRNG key
    scan: bool = False
    checkpoint: bool = False
    tied: bool = False  # the output head is the token embedding, transposed
    qkv_layout: str = "head_major"  # columns of the fused QKV weight; "stacked" is [q|k|v]
    clip_norm: float | None = None  # clip gradients to this global norm
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        for check in (_check_names, _check_counts, _check_heads, _check_model, _check_training):
            check(self)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def compute_dtype(self) -> DTypeLike:
        return jnp.dtype(self.dtype)

    @property
    def capacity(self) -> int:
        """Returns how many tokens of one group (batch row) one expert takes: GShard's C = 2 S /
        E."""
        return max(1, math.ceil(2 * self.seq / self.experts))


def _check_names(c: Config) -> None:
    if c.model not in NAMES:
        raise CfpError(f"There is no model `{c.model}`: use one of {', '.join(NAMES)}.")
    if c.dtype not in DTYPES:
        raise CfpError(f"`dtype` must be {' or '.join(DTYPES)}, not {c.dtype!r}.")
    if c.qkv_layout not in QKV_LAYOUTS:
        raise CfpError(f"`qkv_layout` must be {' or '.join(QKV_LAYOUTS)}, not {c.qkv_layout!r}.")


def _check_counts(c: Config) -> None:
    for field in _POSITIVE:
        value = getattr(c, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CfpError(f"`{field}` must be a positive whole number, not {value!r}.")
    if c.vocab < 8:
        raise CfpError(f"`vocab` must be at least 8, not {c.vocab}: the synthetic task needs them.")


def _check_heads(c: Config) -> None:
    if c.hidden % c.heads:
        raise CfpError(
            f"`hidden` ({c.hidden}) must be divisible by `heads` ({c.heads}): change one of them."
        )
    if c.heads % c.kv_heads:
        raise CfpError(
            f"`heads` ({c.heads}) must be divisible by `kv_heads` ({c.kv_heads}): "
            "change one of them."
        )
    if c.model != "llama" and c.kv_heads != c.heads:
        raise CfpError(
            f"`kv_heads` ({c.kv_heads}) must equal `heads` ({c.heads}) in {c.model}: "
            "only llama has grouped-query attention."
        )
    if c.model == "llama" and c.head_size % 2:
        raise CfpError(
            f"`hidden` / `heads` is {c.head_size}, but rotary positions need an even head size: "
            "change one of them."
        )


def _check_model(c: Config) -> None:
    if c.model == "moe":
        if isinstance(c.experts, bool) or not isinstance(c.experts, int) or c.experts < 2:
            raise CfpError(f"`experts` must be at least 2 for top-2 gating, not {c.experts!r}.")
        if c.layers % 2:
            raise CfpError(
                f"`layers` ({c.layers}) must be even in moe, where dense and expert layers "
                f"alternate: use {c.layers + 1}."
            )
    elif c.experts:
        raise CfpError(f"`experts` is for moe: leave it out for {c.model}.")
    if c.model == "llama" and c.dropout:
        raise CfpError("`dropout` must be 0 in llama, which has none: leave it out.")
    if c.model == "llama" and c.qkv_layout != "head_major":
        raise CfpError("`qkv_layout` is for fused QKV weights: leave it out for llama.")


def _check_training(c: Config) -> None:
    for field, value in (
        ("dropout", c.dropout),
        ("clip_norm", 1.0 if c.clip_norm is None else c.clip_norm),
        ("learning_rate", c.learning_rate),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CfpError(f"`{field}` must be a number, not {value!r}.")
    if not 0 <= c.dropout < 1:
        raise CfpError(f"`dropout` must be at least 0 and below 1, not {c.dropout}.")
    if c.clip_norm is not None and not c.clip_norm > 0:
        raise CfpError(f"`clip_norm` must be above 0, not {c.clip_norm}: leave it out for none.")
    if not c.learning_rate > 0:
        raise CfpError(f"`learning_rate` must be above 0, not {c.learning_rate}.")
