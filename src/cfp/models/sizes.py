"""Named sizes, and `config`: a named size with overrides.

The large ones are the paper's, which takes them from Alpa's benchmark tables; those count one
token embedding, so models with an untied output head come out a little above their names. `tiny`
is for tests (a step in milliseconds), `small` for measurements on a CPU: in both, every size that
a mesh might split divides by 8 (the key-value heads of the tiny llama by 4).
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from cfp.errors import CfpError
from cfp.models.config import NAMES, Config


def _size(model: str, layers: int, hidden: int, heads: int, **rest: Any) -> Config:
    sizes = {"kv_heads": heads, "ffn": 4 * hidden, "seq": 1024, "batch": 16, **rest}
    return Config(model=model, layers=layers, hidden=hidden, heads=heads, **sizes)


def _tiny(model: str, **rest: Any) -> Config:
    sizes = {"seq": 32, "batch": 8, "vocab": 96, "learning_rate": 3e-3, **rest}
    return _size(model, 2, 64, 8, **sizes)


def _small(model: str, heads: int = 8, **rest: Any) -> Config:
    sizes = {"seq": 128, "vocab": 1024, "learning_rate": 1e-3, **rest}
    return _size(model, 4, 256, heads, **sizes)


_BERT: dict[str, Any] = {"dropout": 0.1, "tied": True}
_GPT: dict[str, Any] = {"dropout": 0.1}

SIZES: Mapping[str, Mapping[str, Config]] = {
    "bert": {
        "tiny": _tiny("bert", **_BERT),
        "small": _small("bert", **_BERT),
        "760m": _size("bert", 24, 1536, 24, vocab=51200, **_BERT),
    },
    "gpt": {
        "tiny": _tiny("gpt", **_GPT),
        "small": _small("gpt", **_GPT),
        "2.6b": _size("gpt", 32, 2560, 32, vocab=51200, **_GPT),
        "6.7b": _size("gpt", 32, 4096, 32, vocab=51200, **_GPT),
    },
    "moe": {
        "tiny": _tiny("moe", experts=8),
        "small": _small("moe", experts=8),
        # The paper does not say its shape. Alpa's MoE family has 16 layers, 16 heads, vocabulary
        # 32000 and a feed-forward width of 8 x hidden (mlp_factor=8 in its parameter formula);
        # between its 2.4B (hidden 1024, 16 experts) and 10B (1536, 32), this one counts 7.1B.
        "7.1b": _size("moe", 16, 1280, 16, ffn=8 * 1280, vocab=32000, experts=32),
    },
    "llama": {
        "tiny": _tiny("llama", kv_heads=4, ffn=192),
        # 16 heads, so that the 8 key-value heads are grouped.
        "small": _small("llama", heads=16, kv_heads=8, ffn=704),
        "7b": _size("llama", 32, 4096, 32, ffn=11008, seq=2048, vocab=32000),
    },
}


def config(name: str, size: str = "tiny", **overrides: Any) -> Config:
    """Returns the model `name` at a named size, with overrides; those that are None are left out.

    What is not given follows what is: overriding `hidden` keeps the size's head size (or, where
    that does not divide it, its number of heads) and its ratio of `ffn` to `hidden`, in multiples
    of 8; overriding `heads` keeps the number of heads per key-value head.

    >>> config("llama", "7b", hidden=2048).ffn
    5504
    """
    base = _lookup(name, size)
    given = {field: value for field, value in overrides.items() if value is not None}
    known = [field.name for field in fields(Config) if field.name != "model"]
    for field in given:
        if field not in known:
            raise CfpError(f"`{field}` is not a model option: use one of {', '.join(known)}.")
    return replace(base, **{**_followers(base, given), **given})


def _lookup(name: str, size: str) -> Config:
    if name not in NAMES:
        raise CfpError(f"There is no model `{name}`: use one of {', '.join(NAMES)}.")
    if size not in SIZES[name]:
        raise CfpError(f"{name} has no size `{size}`: use one of {', '.join(SIZES[name])}.")
    return SIZES[name][size]


def _followers(base: Config, given: Mapping[str, Any]) -> dict[str, int]:
    """Returns what the size's other fields become when `hidden` or `heads` is overridden."""
    hidden, heads = given.get("hidden", base.hidden), given.get("heads", base.heads)
    if not (isinstance(hidden, int) and isinstance(heads, int)):
        return {}  # `Config` says what is wrong with them
    if "heads" not in given and hidden % base.head_size == 0:
        heads = hidden // base.head_size
    ffn = base.ffn if hidden == base.hidden else 8 * round(hidden * base.ffn / base.hidden / 8)
    group = base.heads // base.kv_heads
    return {"heads": heads, "kv_heads": max(1, heads // group), "ffn": ffn}
