"""Integers are filled within what they index, whatever their type and by whatever arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfp.segments.fill import COUNTER, Fill, example_inputs, fills_of
from cfp.segments.intervals import RULES, results_of
from cfp.segments.ranges import index_ranges
from cfp.segments.spans import Lanes, Operation, Span, constant, joined
from cfp.trace import LOOP_PRIMITIVES, Graph, trace
from cfp.trace.evaluate import run_straight

ROWS, WIDTH = 10, 4
LOOKUPS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, int]]] = {
    "plain": (lambda t, k: look(t, k), (0, 10)),
    "gradient": (lambda t, k: jax.grad(lambda t: look(t, k).sum())(t), (0, 10)),
    "add": (lambda t, k: look(t, k + 5), (0, 5)),
    "subtract": (lambda t, k: look(t, k - 3), (3, 13)),
    "far": (lambda t, k: look(t, k - 100), (100, 110)),
    "scaled": (lambda t, k: look(t, k[::-1].reshape(3, 1).T * 2 + 1), (0, 5)),
    "modulo": (lambda t, k: look(t, k % 3), (0, 10)),
    "clipped": (lambda t, k: look(t, jnp.clip(k, 2, 9)), (0, 10)),
    "guarded": (lambda t, k: look(t, jnp.where(k < 2, 0, k)), (0, 10)),
    "by way of floats": (lambda t, k: look(t, jnp.floor(k * 0.5).astype(jnp.int32)), (0, 10)),
    "narrow": (lambda t, k: look(t, k.astype(jnp.int8)), (0, 10)),
    "two lookups": (lambda t, k: look(t[:7], k) + look(t, k), (0, 7)),
    "coordinates": (lambda t, k: t.at[jnp.arange(3), k].get(mode="fill"), (0, 4)),
    "diagonal": (lambda t, k: t.at[k, k].get(mode="fill"), (0, 4)),
    "along an axis": (lambda t, k: jnp.take_along_axis(t[:3], k[:, None], axis=1), (0, 4)),
    "under vmap": (
        lambda t, k: jax.vmap(lambda row, i: row.at[i].get(mode="fill"))(t[:3], k),
        (0, 4),
    ),
    "in a loop": (lambda t, k: jax.lax.map(lambda i: look(t, i), k), (0, 10)),
    "in a branch": (
        lambda t, k: jax.lax.cond(k[0] > 0, lambda: look(t, k), lambda: look(t, k + 1)),
        (0, 9),
    ),
    "in a while loop": (
        lambda t, k: jax.lax.fori_loop(0, 3, lambda i, x: x + look(t, k[i]), jnp.zeros(WIDTH)),
        (0, 10),
    ),
    "one hot": (lambda t, k: jax.nn.one_hot(k, 7) @ t[:7], (0, 7)),
    "a slice": (lambda t, k: jax.lax.dynamic_slice(t, (k[0], k[1]), (3, 2)), (0, 3)),
    "a slice written": (
        lambda t, k: jax.lax.dynamic_update_slice(t, t[:7, :1], (k[0], k[1])),
        (0, 4),
    ),
    "scattered": (lambda t, k: t.at[k].add(1.0), (0, 10)),
    "scattered windows": (lambda t, k: t.at[k, 1:3].multiply(1.0), (0, 10)),
}


def look(table: Any, at: Any) -> Any:
    """Rows of a table, NaN where there are none."""
    return table.at[at].get(mode="fill", fill_value=jnp.nan)


def traced(function: Callable[..., Any], *args: Any) -> Graph:
    return trace(lambda *a: function(*a), *args)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_indices_lie_within_what_they_index(name: str, dtype: str) -> None:
    function, expected = LOOKUPS[name]
    keys = jax.ShapeDtypeStruct((3,), jnp.dtype(dtype))
    graph = traced(function, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), keys)
    assert index_ranges(graph, graph.inputs) == {graph.inputs[1]: expected}
    assert fills_of(graph, graph.inputs)[1] == Fill((3,), dtype, "integers", *expected)
    for seed in range(3):
        table, at = example_inputs(graph, graph.inputs, seed)
        assert expected[0] <= at.min()
        assert at.max() < expected[1]
        assert at.dtype == dtype
    assert np.isfinite(jax.jit(function)(table, at)).all()


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "int64", "uint64"])
def test_of_any_other_type(dtype: str) -> None:
    with jax.enable_x64(True):
        graph = traced(look, jnp.ones((100, 2)), jnp.zeros((3,), dtype))
        assert index_ranges(graph, graph.inputs) == {graph.inputs[1]: (0, 100)}
        assert fills_of(graph, graph.inputs)[1].kind == "integers"


def test_a_type_that_cannot_reach_the_end_of_the_table() -> None:
    graph = traced(look, jnp.ones((300, 2)), jnp.zeros((3,), jnp.uint8))
    assert index_ranges(graph, graph.inputs) == {graph.inputs[1]: (0, 256)}


def test_floor_division_is_bounded_though_its_rounding_is_not_followed() -> None:
    for dtype in (jnp.int32, jnp.uint32):
        graph = traced(lambda t, k: look(t, k // 3), jnp.ones((4, 2)), jnp.zeros((3,), dtype))
        ((low, high),) = index_ranges(graph, graph.inputs).values()
        assert 0 <= low < high - 1 < 12


def test_arguments_that_index_together() -> None:
    keys = jnp.zeros((3,), jnp.uint8)
    graph = traced(
        lambda t, p, k: look(t, p[k]), jnp.ones((10, 2)), jnp.zeros((7,), jnp.int32), keys
    )
    _, permutation, at = graph.inputs
    assert index_ranges(graph, graph.inputs) == {permutation: (0, 10), at: (0, 7)}
    graph = traced(lambda t, a, b: look(t, 3 * a + b), jnp.ones((12, 2)), keys, keys)
    _, a, b = graph.inputs
    assert index_ranges(graph, graph.inputs) == {a: (0, 4), b: (0, 3)}


def test_what_indexes_nothing_is_filled_as_before() -> None:
    def step(table: Any, count: Any, pixels: Any, bits: Any, mask: Any) -> Any:
        chosen = table[jax.random.randint(bits, (3,), 0, 10)]
        return chosen.sum() * count * pixels.sum() * mask.sum()

    args = (jnp.ones((10, 2)), jnp.int32(0), jnp.zeros((5,), jnp.uint8), jnp.zeros(2, jnp.uint32))
    graph = traced(step, *args, jnp.zeros((3,), bool))
    assert not index_ranges(graph, graph.inputs)
    fills = fills_of(graph, graph.inputs)
    assert [fill.kind for fill in fills] == ["normal", "integers", "bits", "bits", "bools"]
    assert (fills[1].low, fills[1].high) == COUNTER
    _, count, pixels, bits, _ = example_inputs(graph, graph.inputs)
    assert count in range(*COUNTER)
    assert pixels.dtype == np.uint8
    assert len({*pixels.tolist()}) > 1
    assert bits.dtype == np.uint32


# --- the rules, by running the operations ----------------------------------------------------

ROUNDING = 1e-6  # of float32, around numbers below ten
A, B = Span(-3, 5), Span(1, 4)
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda a, b: (
        a + b,
        a - b,
        a * b,
        -a,
        jnp.abs(a),
        jnp.sign(a),
        jax.lax.clamp(b, a, b + 2),
    ),
    "extremes": lambda a, b: (jnp.maximum(a, b), jnp.minimum(a, b), a.max(), a.min()),
    "division": lambda a, b: (jax.lax.div(a, b), jax.lax.rem(a, b), a // b, a % b),
    "bits": lambda a, b: (
        b & 3,
        jax.lax.shift_left(b, b),
        b >> 1,
        jax.lax.shift_right_logical(b, b),
    ),
    "comparisons": lambda a, b: ((a < b) & (a >= 0), (a > b) | ~(a <= 1), (a == b) != (b == 2)),
    "choices": lambda a, b: (jnp.where(a < 0, a + 9, a), jax.lax.select_n(b > 0, a, b)),
    "floats": lambda a, b: (
        (a * 0.3).astype(jnp.int32),
        jnp.floor(a / 2).astype(jnp.int32),
        jnp.ceil(b / 3).astype(jnp.int32),
        jnp.round(a / 3).astype(jnp.int32),
    ),
    "shapes": lambda a, b: (
        jnp.concatenate([a[:, None], b[:, None]], axis=1) * jnp.array([1, 10]),
        jnp.stack([a, b]).T.reshape(-1),
        jnp.stack([a, b], axis=1) * jnp.array([1, 10]),
        jnp.unstack(jnp.stack([a, b]))[0],
        jnp.tile(a, 2),
        jnp.pad(a, 2, constant_values=9)[::-1],
        jnp.broadcast_to(a, (2, 4)).sum(0),
        jax.lax.expand_dims(a, [0]).squeeze(0),
        jnp.split(a, 2)[1],
        jax.lax.dynamic_slice(a, (0,), (2,)),
        jax.lax.dynamic_update_slice(a, b[:2], (1,)),
        a.at[1:3].set(7),
        jax.lax.stop_gradient(jax.lax.optimization_barrier((a, b)))[1],
    ),
    "positions": lambda a, b: (
        jnp.argmax(a),
        jnp.argmin(a),
        jnp.argsort(a),
        jax.lax.top_k(a, 2)[1],
        jnp.cumsum(a),
        jax.lax.cummax(a),
        jax.lax.cummin(a),
        a[jnp.clip(a, 0, 3)],
        jnp.arange(4) + jnp.copy(a),
    ),
}


def lanes_of(graph: Graph) -> dict[int, Lanes]:
    found: dict[int, Lanes] = dict(zip(graph.inputs, ((A,), (B,)), strict=True))
    found |= {value: constant(array) for value, array in graph.constants.items()}
    for equation in graph.equations:
        op = equation.op
        plain = Operation(op.primitive, op.params, op.in_shapes, op.out_shapes, op.out_dtypes)
        results = results_of(plain, [found[value] for value in equation.inputs])
        found.update(zip(equation.outputs, results, strict=True))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_in_their_intervals(name: str) -> None:
    shape = jax.ShapeDtypeStruct((4,), jnp.int32)
    graph = traced(PROGRAMS[name], shape, shape)
    lanes = lanes_of(graph)
    assert all(joined(lanes[value]) != (None,) for value in graph.outputs), "a rule is missing"
    random = np.random.default_rng(0)
    for _ in range(20):
        inputs = [random.integers(span.low, span.high + 1, 4).astype(np.int32) for span in (A, B)]
        env = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
        run_straight(graph.equations, env)
        for value, found in lanes.items():
            numbers = np.asarray(env[value])
            columns = numbers.reshape(-1, len(found)) if numbers.size else numbers
            for lane, column in zip(found, columns.T, strict=True):
                if lane is not None:
                    low, high = lane.low - ROUNDING, lane.high + ROUNDING
                    inside = (low <= column) & (column <= high)
                    assert inside.all(), f"{graph.describe(value)}: {column} not in {lane}"


def test_every_rule_was_tried_above() -> None:
    shape = jax.ShapeDtypeStruct((4,), jnp.int32)
    tried = {
        equation.primitive
        for program in PROGRAMS.values()
        for equation in traced(program, shape, shape).equations
    }
    identities = {"device_put", "sharding_constraint", "copy", "copy_p", "stop_gradient"}
    assert RULES.keys() - tried <= identities | LOOP_PRIMITIVES | {"expand_dims"}
