"""Top-2 gating and the expert layer against plain loops over tokens."""

import functools

import jax
import numpy as np
import pytest

from cfp import models
from cfp.models import moe

from .conftest import TINY, quick_jit


def plain_gating(logits, capacity):
    """Returns, for each group, (token, expert, slot, weight) of what is dispatched, and the
    balance."""
    groups, balance = [], []
    for group in logits.astype(np.float64):
        gates = np.exp(group - group.max(-1, keepdims=True))
        gates /= gates.sum(-1, keepdims=True)
        order = np.argsort(-gates, axis=-1, kind="stable")
        filled = np.zeros(gates.shape[-1], int)
        sent = []
        for choice in (0, 1):  # all first choices, then all second choices
            for token, row in enumerate(gates):
                expert = order[token, choice]
                if filled[expert] < capacity:
                    weight = row[expert] / row[order[token, :2]].sum()
                    sent.append((token, expert, filled[expert], weight))
                filled[expert] += 1
        groups.append(sent)
        used = np.bincount(order[:, 0], minlength=gates.shape[-1]) / len(gates)
        balance.append(gates.shape[-1] * (used * gates.mean(0)).sum())
    return groups, np.mean(balance)


def gating(logits, capacity):
    return quick_jit(functools.partial(moe.top2_gating, capacity=capacity))(logits)


def gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("capacity", [1, 3, 8, 16])
@pytest.mark.parametrize("skew", [0.0, 3.0])
def test_gating(capacity, skew):
    rng = np.random.default_rng(capacity)
    logits = rng.normal(size=(3, 16, 4)) + skew * np.arange(4)  # skew: one expert is overrun
    logits = logits.astype(np.float32)
    combine, balance = gating(logits, capacity)
    groups, expected_balance = plain_gating(logits, capacity)

    expected = np.zeros((3, 16, 4, capacity))
    for g, sent in enumerate(groups):
        for token, expert, slot, weight in sent:
            expected[g, token, expert, slot] = weight
    np.testing.assert_allclose(combine, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(balance, expected_balance, rtol=1e-5)

    sent = np.asarray(combine) > 0
    assert sent.any(axis=-1).sum(axis=-1).max() <= 2  # a token goes to two experts at most
    assert sent.sum(axis=1).max() <= 1  # a slot holds one token
    assert sent.sum(axis=(1, 3)).max() <= capacity
    assert np.asarray(combine).sum(axis=(2, 3)).max() <= 1 + 1e-6


def test_even_use_costs_one():
    even = 20 * np.eye(4, dtype=np.float32)[np.arange(8) % 4][None]
    one_for_all = 20 * np.eye(4, dtype=np.float32)[np.zeros(8, int)][None]
    assert gating(even, 8)[1] == pytest.approx(1, rel=1e-3)
    assert gating(one_for_all, 8)[1] == pytest.approx(4, rel=1e-3)


def test_gates_that_vanish_are_finite():
    logits = 1e4 * np.eye(4, dtype=np.float32)[None]  # the second gate underflows to 0
    value, grads = quick_jit(jax.value_and_grad(lambda x: moe.top2_gating(x, 4)[0].sum()))(logits)
    assert value == pytest.approx(4)
    assert np.isfinite(grads).all()


def test_expert_layer():
    config = models.config("moe", hidden=16, heads=4, ffn=32, experts=4, seq=8, batch=2)
    rng = np.random.default_rng(0)
    shapes = {"gate": (16, 4), "up": (4, 16, 32), "down": (4, 32, 16)}
    params = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    x = rng.normal(size=(2, 8, 16)).astype(np.float32)
    actual, _ = quick_jit(functools.partial(moe.experts, config))(params, x)

    groups, _ = plain_gating(x @ params["gate"], config.capacity)
    expected = np.zeros_like(x)
    for g, sent in enumerate(groups):
        for token, expert, _, weight in sent:
            inner = gelu(x[g, token] @ params["up"][expert])
            expected[g, token] += weight * (inner @ params["down"][expert])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_dense_and_expert_layers_alternate_and_the_balance_counts():
    config = models.config("moe", layers=4)
    _, (state, _) = models.make_step(config, abstract=True)
    assert ["gate" in layer for layer in state.params["layers"]] == [False, True, False, True]
    assert config.capacity == 2 * config.seq // config.experts


def test_loss_is_cross_entropy_plus_balance(first_step):
    _, metrics = first_step(TINY["moe"])
    assert 0.9 < metrics["aux_loss"] < 2
    assert metrics["loss"] > moe.AUX_WEIGHT * metrics["aux_loss"]
