"""What splits are called: the words follow from what the operands are, not from their sides."""

import doctest
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cfp.blocks import batch, build_blocks, words
from cfp.blocks.words import MEANING, SplitName, legend
from cfp.trace import trace

B, S, D, F, V = 8, 4, 16, 32, 64


def names(loss: Callable[..., Any], params: Any, *data: tuple[int, ...], **options: Any) -> Any:
    """The candidates' names and extents, of every block of a step that trains `params`; without
    twins."""

    def step(params: Any, frozen: Any, *data: Any) -> Any:
        grads = jax.grad(loss)(params, frozen, *data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    frozen = options.pop("frozen", {})
    args = [
        jax.tree.map(
            lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
            tree,
            is_leaf=lambda leaf: isinstance(leaf, tuple),
        )
        for tree in (params, frozen)
    ]
    arrays = [jax.ShapeDtypeStruct(shape, options.pop("dtype", jnp.float32)) for shape in data]
    found = build_blocks(trace(step, *args, *arrays), (2,), **options)
    return [
        {c.name: c.extent for c in block.candidates if c.stream_of is None}
        for block in found.blocks
    ]


PRODUCT = {"batch": B, "output features": F, "input features": D}


def test_the_weight_may_stand_on_either_side() -> None:
    right = names(lambda p, _, x: (x @ p["w"]).sum() ** 2, {"w": (D, F)}, (B, D))
    left = names(lambda p, _, x: (p["w"] @ x.T).sum() ** 2, {"w": (F, D)}, (B, D))
    assert right == left == [PRODUCT]


def test_data_may_come_with_its_features_first() -> None:
    def loss(p: Any, _: Any, x: Any, y: Any) -> Any:
        return ((p["v"] @ jnp.tanh(p["w"] @ x) - y) ** 2).mean()

    first, second = names(loss, {"w": (F, D), "v": (V, F)}, (D, B), (V, B))
    assert first == PRODUCT
    assert second == {"batch": B, "output features": V, "input features": F}


def test_what_a_weight_is_made_of_does_not_matter() -> None:
    def loss(p: Any, _: Any, x: Any) -> Any:
        return (x @ (p["w"].astype(jnp.bfloat16) * 2).astype(jnp.float32).T).sum() ** 2

    assert names(loss, {"w": (F, D)}, (B, D)) == [PRODUCT]


def test_frozen_weights_are_weights() -> None:
    """They have many more elements than the data."""

    def loss(p: Any, frozen: Any, ids: Any) -> Any:
        x = frozen["t"][ids]
        h = jnp.tanh(x @ frozen["w"] + x @ (p["down"] @ p["up"]))
        return (h @ frozen["v"]).sum() ** 2

    frozen = {"t": (V, D), "w": (D, F), "v": (F, V)}
    adapter = {"down": (D, 4), "up": (4, F)}
    found = names(loss, adapter, (B,), frozen=frozen, dtype=jnp.int32)
    assert found[-1] == {"batch": B, "output features": V, "input features": F}
    assert {"left dim": D, "right dim": F, "summed dim": 4} in found  # of two weights
    assert PRODUCT in found


def test_a_lookup() -> None:
    def loss(p: Any, _: Any, ids: Any) -> Any:
        return ((p["t"][ids] + p["positions"][jnp.arange(S)]) @ p["w"]).sum() ** 2

    table = {"t": (V, D), "positions": (S, D), "w": (D, F)}
    found = names(loss, table, (B, S), dtype=jnp.int32)
    assert {"batch": B, "output features": D, "table rows": V} in found
    assert {"sequence": S, "output features": D, "table rows": S} in found  # of no example


def test_attention_and_experts() -> None:
    def scores(p: Any, _: Any, q: Any, k: Any) -> Any:
        return jnp.einsum("bshd,bthd->bhst", q * p["scale"], k).sum() ** 2

    (found,) = names(scores, {"scale": (D,)}, (B, S, 2, D), (B, S + 2, 2, D))
    assert found == {"batch": B, "groups": 2, "left dim": S, "right dim": S + 2, "summed dim": D}

    def experts(p: Any, _: Any, x: Any) -> Any:
        return jnp.einsum("edf,ebd->ebf", p["w"], x).sum() ** 2

    found = names(experts, {"w": (2, D, F)}, (2, B, D))[-1]
    assert found.pop("batch") == 2  # the first dim of the data, as far as anyone can tell
    assert found == {"output features": F, "input features": D, "sequence": B}


def test_sequence_dims() -> None:
    product = {"w": (D, F)}
    found = names(lambda p, _, x: (x @ p["w"]).sum() ** 2, product, (B, S, D), sequence=True)
    assert found == [{**PRODUCT, "sequence": S}]


def test_the_batch_is_followed_through_reshapes_and_loops() -> None:
    """8 rows in 4 micro-batches of 2: a loop over the first leaves the second."""

    def loss(p: Any, _: Any, x: Any) -> Any:
        def body(carry: Any, part: Any) -> Any:
            return carry + (part.reshape(-1, D) @ p["w"]).sum() ** 2, None

        return jax.lax.scan(body, 0.0, x.reshape(4, 2, S, D))[0]

    assert names(loss, {"w": (D, F)}, (B, S, D)) == [{**PRODUCT, "batch": 2 * S}]


def test_without_a_map_the_first_dim_is_taken_for_the_batch() -> None:
    def loss(p: Any, _: Any, x: Any) -> Any:
        x = jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x)
        return (x @ p["w"]).sum() ** 2

    assert names(loss, {"w": (D, F)}, (B, D)) == [PRODUCT]


def test_every_word_is_explained() -> None:
    assert set(MEANING) == {*(kind.value for kind in SplitName), "split stream", "replicated"}
    line = legend([*MEANING])
    assert all(f"{word}: {meaning}" in line for word, meaning in MEANING.items())
    assert legend([]) == ""


@pytest.mark.parametrize("module", [batch, words])
def test_the_examples_in_the_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
