"""Rotary positions and grouped-query attention against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np

from cfp.models import layers, llama

from .conftest import quick_jit


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_rotary_turns_each_pair_by_its_angle():
    batch, seq, heads, size = 2, 5, 3, 8
    x = random(batch, seq, heads, size)
    expected = np.zeros((batch, seq, heads, size), np.complex128)
    for position in range(seq):
        for i in range(size // 2):
            angle = position * 10000.0 ** (-2 * i / size)
            pair = x[:, position, :, i] + 1j * x[:, position, :, i + size // 2]
            turned = pair * np.exp(1j * angle)
            expected[:, position, :, i] = turned.real
            expected[:, position, :, i + size // 2] = turned.imag
    actual = llama.rotate(jnp.asarray(x), *llama.rotary_angles(seq, size))
    np.testing.assert_allclose(actual, expected.real, rtol=1e-5, atol=1e-5)


def test_rotary_scores_depend_on_the_distance_alone():
    seq, size = 6, 8
    q, k = (np.broadcast_to(random(size, seed=s), (1, seq, 1, size)) for s in (0, 1))
    cos, sin = llama.rotary_angles(seq, size)
    turned_q, turned_k = (llama.rotate(jnp.asarray(x), cos, sin) for x in (q, k))
    scores = np.asarray(jnp.einsum("bqhd,bkhd->qk", turned_q, turned_k))
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], rtol=1e-4, atol=1e-4)


def test_grouped_query_attention():
    batch, seq, heads, kv_heads, size = 2, 5, 6, 2, 4
    q = random(batch, seq, heads, size)
    k, v = (random(batch, seq, kv_heads, size, seed=s) for s in (1, 2))
    expected = np.zeros((batch, seq, heads, size))
    for b, t, h in np.ndindex(batch, seq, heads):
        shared = h // (heads // kv_heads)
        scores = np.array([q[b, t, h] @ k[b, s, shared] for s in range(t + 1)]) / np.sqrt(size)
        probs = np.exp(scores) / np.exp(scores).sum()
        expected[b, t, h] = sum(p * v[b, s, shared] for s, p in enumerate(probs))
    k, v = (llama.repeat_heads(jnp.asarray(x), heads // kv_heads) for x in (k, v))
    actual = layers.attention(jnp.asarray(q), k, v, layers.causal_mask(seq))
    np.testing.assert_allclose(actual, expected.reshape(batch, seq, -1), rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing_stays_finite():
    q, k, v = (jnp.asarray(random(1, 4, 1, 2, seed=s)) for s in range(3))
    mask = jnp.zeros((4, 4), bool)
    attend = jax.value_and_grad(lambda q: layers.attention(q, k, v, mask).sum())
    value, grads = quick_jit(attend)(q)
    assert np.isfinite(value)
    assert np.isfinite(grads).all()


def test_norms():
    x = random(3, 8)
    centred = x - x.mean(-1, keepdims=True)
    expected = 2 * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + 1
    params = {"scale": jnp.full(8, 2.0), "bias": jnp.ones(8)}
    np.testing.assert_allclose(layers.layer_norm(jnp.asarray(x), params), expected, rtol=1e-5)
    expected = 2 * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        layers.rms_norm(jnp.asarray(x), params["scale"]), expected, rtol=1e-5
    )
