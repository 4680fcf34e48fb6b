"""Blocks of functions small enough to know the answer."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from cfp.blocks import Block, SplitName, build_blocks
from cfp.errors import CfpError
from cfp.models import NAMES, config, make_step
from cfp.trace import Graph, trace
from tests.blocks.check import check_blocks

from .cases import (
    attend,
    attention,
    backward,
    build,
    extents,
    floats,
    heads,
    ints,
    kinds,
    seeds,
    text,
    training,
)
from .oracle import violations

QKVO = dict.fromkeys(("q", "k", "v", "out"), (16, 16))


def mlp(p: Any, x: Array) -> Array:
    return jnp.tanh(x @ p["up"] + p["bias"]) @ p["down"]


MLP = {"up": (16, 32), "bias": (32,), "down": (32, 16)}


def test_mlp() -> None:
    assert text(*build(mlp, MLP)) == (
        """\
block 0
  seed dot_general [8,4,16] x [16,32]
  candidate batch: extent 8, dims (0, None)->0
  candidate output features: extent 32, dims (None, 1)->2
  candidate input features: extent 16, dims (2, 0)->None
  4 members, 1 placed, 1 backward contractions
  ends: dot_general does not keep output features
block 1
  seed dot_general [8,4,32] x [32,16]
  candidate batch: extent 8, dims (0, None)->0
  candidate output features: extent 16, dims (None, 1)->2
  candidate input features: extent 32, dims (2, 0)->None
  3 members, 1 placed, 2 backward contractions
  ends: reduce_sum does not keep batch"""
    )


# --- attention ---------------------------------------------------------------------------


def test_head_major_qkv_keeps_its_columns() -> None:
    """Whole heads, each with its q, k and v, go to a device."""

    def forward(p: Any, x: Array) -> Array:
        q, k, v = jnp.unstack((x @ p["qkv"]).reshape(*x.shape[:2], 4, 3, 4), axis=3)
        return attend(q, k, v) @ p["out"]

    graph, blocks = build(forward, {"qkv": (16, 48), "out": (16, 16)})
    first, second = blocks.blocks
    assert extents(first) == {"batch": 8, "output features": 4, "input features": 16}
    assert kinds(graph, first.members).count("dot_general") == 3
    assert "reduce_max" in kinds(graph, first.members)
    assert backward(blocks) == [1 + 4, 2]
    assert first.ended_by == ("dot_general does not keep output features",)
    assert extents(second) == {"batch": 8, "output features": 16, "input features": 16}


def test_stacked_qkv_ends_at_the_split() -> None:
    def forward(p: Any, x: Array) -> Array:
        return attend(*(heads(t, 4) for t in jnp.split(x @ p["qkv"], 3, axis=-1))) @ p["out"]

    graph, blocks = build(forward, {"qkv": (16, 48), "out": (16, 16)})
    first = blocks.blocks[0]
    assert kinds(graph, first.members) == ["dot_general"]
    assert first.ended_by == ("split does not keep output features",)
    assert seeds(blocks) == [1, 1, 1, 1]
    assert extents(blocks.blocks[1])["groups"] == 4  # the heads


def test_separate_qkv_are_siblings() -> None:
    _, blocks = build(attention(4, 4), QKVO)
    assert seeds(blocks) == [3, 1]
    assert extents(blocks.blocks[0]) == {"batch": 8, "output features": 4, "input features": 16}
    for candidate in blocks.blocks[0].candidates:
        assert set(candidate.seeds) == set(blocks.blocks[0].seeds)
    assert backward(blocks) == [3 + 4, 2]


def test_cross_attention_joins() -> None:
    _, blocks = build(attention(4, 4), {**QKVO, "k": (12, 16), "v": (12, 16)}, *CROSS)
    assert seeds(blocks) == [3, 1]
    assert extents(blocks.blocks[0]) == {"batch": 8, "output features": 4, "input features": 4}


CROSS = (floats(8, 4, 16), floats(8, 6, 12))


def test_grouped_queries_join_where_their_heads_divide() -> None:
    _, blocks = build(attention(8, 4), {**QKVO, "k": (16, 8), "v": (16, 8)})
    assert seeds(blocks) == [3, 1]
    assert extents(blocks.blocks[0])["output features"] == 4


def test_grouped_queries_end_where_their_heads_do_not() -> None:
    """Two key-value heads on four devices: k ends where its heads are told apart."""
    shapes = {**QKVO, "k": (16, 4), "v": (16, 4)}
    graph, blocks = build(attention(8, 2), shapes)
    q, k, v, scores, values, _ = blocks.blocks
    assert seeds(blocks) == [1] * 6
    assert kinds(graph, q.members) == ["dot_general", "reshape"]
    for block in (k, v):
        assert kinds(graph, block.members) == ["dot_general"]
        assert block.ended_by == ("reshape does not keep output features",)
    assert extents(scores) == {
        "batch": 8,
        "groups": 8,
        "left dim": 4,
        "right dim": 4,
        "summed dim": 2,
    }
    assert scores.inputs_from == (0, 1)
    assert values.inputs_from == (2, 3)
    _, fitting = build(attention(8, 2), shapes, mesh=(2,))
    assert seeds(fitting) == [3, 1]


def test_sequence_is_a_candidate_and_ends_at_the_softmax() -> None:
    graph, blocks = build(attention(4, 4), QKVO, sequence=True)
    scores, v, values, out = blocks.blocks
    assert seeds(blocks) == [2, 1, 1, 1]
    # the query's sequence, and the key's: each splits one of the two seeds
    assert [(c.split_name, len(c.seeds)) for c in scores.candidates if not c.sums] == [
        (SplitName.BATCH, 2),
        (SplitName.SEQUENCE, 1),
        (SplitName.OUTPUT, 2),
        (SplitName.SEQUENCE, 1),
    ]
    assert kinds(graph, scores.members).count("dot_general") == 3
    assert "reduce_max" not in kinds(graph, scores.members)
    assert any("reduce_max" in reason for reason in scores.ended_by)
    assert extents(v) == {"batch": 8, "sequence": 4, "output features": 4, "input features": 16}
    assert "reduce_max" in kinds(graph, values.prologue)
    assert extents(out) == {"batch": 8, "sequence": 4, "output features": 16, "input features": 16}


# --- joins and homes ---------------------------------------------------------------------


def test_gate_and_up_are_siblings() -> None:
    def forward(p: Any, x: Array) -> Array:
        return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]

    _, blocks = build(forward, {"gate": (16, 32), "up": (16, 32), "down": (32, 16)})
    assert seeds(blocks) == [2, 1]
    assert extents(blocks.blocks[0]) == {"batch": 8, "output features": 32, "input features": 16}
    assert backward(blocks) == [2, 2]


def test_a_residual_belongs_to_the_later_block() -> None:
    def forward(p: Any, x: Array) -> Array:
        y = x @ p["a"]
        y = y + jnp.tanh(y @ p["b"]) @ p["c"]
        return y + jnp.tanh(y @ p["d"]) @ p["e"]

    shapes = {"a": (16, 16), "b": (16, 32), "c": (32, 16), "d": (16, 32), "e": (32, 16)}
    graph, blocks = build(forward, shapes)
    a, b, c, d, e = blocks.blocks
    assert kinds(graph, a.members) == ["dot_general"]  # it does not swallow the stream
    assert kinds(graph, c.members) == ["dot_general", "add"]
    assert kinds(graph, e.members)[:2] == ["dot_general", "add"]
    assert [block.inputs_from for block in (b, c, d, e)] == [(0,), (0, 1), (2,), (2, 3)]
    assert backward(blocks) == [1, 2, 2, 2, 2]


def test_a_norm_is_placed_with_its_reader() -> None:
    def forward(p: Any, x: Array) -> Array:
        y = x @ p["a"]
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
        return y @ p["b"]

    graph, blocks = build(forward, {"a": (16, 16), "b": (16, 16)})
    first, second = blocks.blocks
    assert kinds(graph, first.members) == ["dot_general"]  # the square would only cross as well
    assert not first.prologue
    assert first.ended_by == ("reduce_sum does not keep output features",)
    assert kinds(graph, second.prologue)[:2] == ["mul", "reduce_sum"]
    assert "rsqrt" in kinds(graph, second.prologue)


def test_image_by_text_is_a_seed_of_its_own() -> None:
    def forward(p: Any, image: Array, words: Array) -> Array:
        return (image @ p["image"]) @ (words @ p["words"]).T

    data = floats(8, 16), floats(8, 12)
    _, blocks = build(forward, {"image": (16, 8), "words": (12, 8)}, *data)
    assert seeds(blocks) == [1, 1, 1]
    product = blocks.blocks[2]
    assert product.inputs_from == (0, 1)
    assert extents(product) == {"batch (1)": 8, "batch (2)": 8, "summed dim": 8}
    assert blocks.blocks[1].ended_by == ("dot_general does not keep output features",)
    assert backward(blocks) == [1, 1, 2]


def test_a_shared_producer_is_placed_with_its_first_reader() -> None:
    def forward(p: Any, x: Array) -> Array:
        shared = jnp.tanh(x - jnp.mean(x @ p["a"], axis=-1, keepdims=True))
        return jnp.sin(shared @ p["b"]) @ p["c"] + jnp.cos(shared @ p["d"]) @ p["c"]

    shapes = {"a": (16, 16), "b": (16, 32), "c": (32, 16), "d": (16, 32)}
    graph, blocks = build(forward, shapes)
    first_reader, second_reader = blocks.blocks[1], blocks.blocks[2]
    assert "tanh" in kinds(graph, first_reader.prologue)
    assert "tanh" not in kinds(graph, second_reader.prologue)
    assert first_reader.inputs_from == second_reader.inputs_from == (0,)


# --- refinement --------------------------------------------------------------------------


def bottleneck(width: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The paper's figure: [A, B] as [A, B2, B1], through `width` and back, batched over B2.

    (The paper writes [A, B1, B2] and contracts B1; contiguous chunks of B are then not chunks of
    B2, so here B2 is the major part.)
    """

    def forward(p: Any, x: Array) -> Array:
        y = (x @ p["a"]).reshape(8, 4, 8)
        y = jnp.einsum("abi,bci->bac", y, p["b"])
        y = jnp.einsum("bac,bic->abi", y, p["c"])
        return jnp.sin(y.reshape(8, 32)) @ p["d"]

    return forward, {"a": (16, 32), "b": (4, width, 8), "c": (4, 8, width), "d": (32, 16)}


def test_a_small_bottleneck_splits_the_block() -> None:
    graph, blocks = build(*bottleneck(2), floats(8, 16))
    first, second, _ = blocks.blocks
    assert kinds(graph, first.members).count("dot_general") == 2
    assert first.ended_by == ("split at a smaller tensor",)
    assert kinds(graph, second.seeds) == ["dot_general"]
    assert graph.values[graph.equations[second.seeds[0]].inputs[0]].shape == (4, 8, 2)
    assert backward(blocks) == [3, 2, 2]


@pytest.mark.parametrize("width", [8, 32])
def test_a_large_one_does_not(width: int) -> None:
    graph, blocks = build(*bottleneck(width), floats(8, 16))
    assert [kinds(graph, block.members).count("dot_general") for block in blocks.blocks] == [3, 1]
    assert extents(blocks.blocks[0]) == {"batch": 8, "output features": 4, "input features": 16}


def test_a_stacked_result_counts_as_handed_out() -> None:
    """A loop that only returns its bottleneck's result is refined as the straight code is."""
    forward, shapes = bottleneck(2)
    params = {name: floats(*shape) for name, shape in shapes.items()}

    def scanned(p: Any, xs: Array) -> Any:
        return jax.lax.scan(lambda carry, x: (carry, forward(p, x)), 0.0, xs)

    straight = build_blocks(trace(forward, params, floats(8, 16)), (4,))
    looped = build_blocks(trace(scanned, params, floats(3, 8, 16)), (4,))
    assert [extents(b) for b in looped.blocks] == [extents(b) for b in straight.blocks]


def test_no_contraction_is_left_out_where_blocks_are_cut_back() -> None:
    """Less would cross before the product of y with itself; it is still a member of a block."""

    def forward(p: Any, x: Array) -> Array:
        y = x @ p["a"]
        squares = jnp.einsum("bsd,bsd->bsd", y, y)
        return jnp.flip(squares, -1) @ p["b"] + jnp.sin(jnp.flip(y, -1) @ p["b"])

    graph, blocks = build(forward, {"a": (16, 16), "b": (16, 16)})
    members = [kind for block in blocks.blocks for kind in kinds(graph, block.members)]
    assert members.count("dot_general") == 4
    assert sum(backward(blocks)) == 1 + 2 + 2 * 2


# --- strategies --------------------------------------------------------------------------


def test_replicated_only_where_cheap() -> None:
    def forward(p: Any, x: Array) -> Array:
        return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]) @ p["tiny"]

    _, blocks = build(forward, {"a": (16, 256), "b": (256, 16), "tiny": (16, 4)})
    assert [block.cheap for block in blocks.blocks] == [False, False, True]
    assert [len(block.strategies((4,))) for block in blocks.blocks] == [3, 3, 4]
    assert (None,) in blocks.blocks[2].strategies((4,))


def test_replicated_where_nothing_divides() -> None:
    _, blocks = build(lambda p, x: x @ p["a"], {"a": (5, 7)}, floats(3, 5))
    assert blocks.blocks[0].strategies((4,)) == ((None,),)
    assert blocks.blocks[0].strategies((2, 2)) == ((None, None),)


def test_strategies_of_two_axes() -> None:
    """Rows of 4 take 2 or 4 devices, not 8; columns and the contracted 16 take any."""
    _, blocks = build(lambda p, x: x @ p["a"], {"a": (16, 32)}, floats(4, 16), mesh=(2, 4))
    block = blocks.blocks[0]
    assert extents(block) == {"batch": 4, "output features": 32, "input features": 16}
    rows, columns, contracted = range(3)
    assert block.strategies((2, 4)) == (
        (rows, columns),
        (rows, contracted),
        (columns, rows),
        (columns, columns),
        (columns, contracted),
        (contracted, rows),
        (contracted, columns),
        (contracted, contracted),
    )
    assert block.strategies((1, 4)) == ((None, 0), (None, 1), (None, 2))


def test_an_axis_too_many_is_replicated_alone() -> None:
    """One dim of extent 2 on 2x2 devices: split on either axis, not on none."""
    _, blocks = build(lambda p, x: x @ p["a"], {"a": (5, 2)}, floats(3, 5), mesh=(2, 2))
    block = blocks.blocks[0]
    (columns,) = [i for i, c in enumerate(block.candidates) if c.split_name is SplitName.OUTPUT]
    assert set(block.strategies((2, 2))) == {(columns, None), (None, columns)}


# --- lookups and convolutions ------------------------------------------------------------


def test_embedding_lookup_is_a_seed() -> None:
    def forward(p: Any, ids: Array) -> Array:
        return jnp.tanh(p["table"][ids]) @ p["w"]

    graph, blocks = build(forward, {"table": (32, 16), "w": (16, 16)}, ints(8, 4))
    lookup = blocks.blocks[0]
    assert kinds(graph, lookup.seeds) == ["gather"]
    assert extents(lookup) == {"batch": 8, "output features": 16, "table rows": 32}
    how = {c.name: c.seeds[lookup.seeds[0]] for c in lookup.candidates}
    assert (how["batch"].operand_dims, how["batch"].result_dim) == ((None, 0), 0)
    made, read = how["output features"], how["table rows"]
    assert (made.operand_dims, made.result_dim) == ((1, None), 2)
    assert (read.operand_dims, read.result_dim) == ((0, None), None)
    assert kinds(graph, lookup.backward) == ["scatter-add"]
    assert lookup.cheap, "it computes nothing: every device may look up everything"
    assert (None,) in lookup.strategies((4,))


def test_tied_embedding() -> None:
    """The table's two uses are two blocks, and each gets its own backward contractions."""

    def forward(p: Any, ids: Array) -> Array:
        return jnp.tanh(p["table"][ids] @ p["w"]) @ p["table"].T

    graph, blocks = build(forward, {"table": (32, 16), "w": (16, 16)}, ints(8, 4))
    assert [kinds(graph, block.seeds) for block in blocks.blocks] == [
        ["gather"],
        ["dot_general"],
        ["dot_general"],
    ]
    assert backward(blocks) == [1, 2, 2]


def test_convolutions() -> None:
    def conv(x: Array, w: Array) -> Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    def forward(p: Any, x: Array) -> Array:
        y = jnp.tanh(conv(x, p["a"]))
        y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        y = jnp.tanh(conv(y, p["b"]))
        return y.reshape(4, -1) @ p["c"]

    shapes = {"a": (3, 3, 4, 8), "b": (3, 3, 8, 4), "c": (2 * 2 * 4, 4)}
    graph, blocks = build(forward, shapes, floats(4, 4, 4, 4))
    first, second, last = blocks.blocks
    assert kinds(graph, (*first.seeds, *second.seeds)) == ["conv_general_dilated"] * 2
    assert extents(first) == {"batch": 4, "output features": 8, "input features": 4}
    assert "reduce_window_max" in kinds(graph, first.members)
    assert first.ended_by == ("conv_general_dilated does not keep output features",)
    assert second.ended_by == ("reshape does not keep output features",)
    assert kinds(graph, last.seeds) == ["dot_general"]
    assert backward(blocks) == [1, 2, 2]


# --- the backward pass -------------------------------------------------------------------


def test_a_layer_used_three_times() -> None:
    def forward(p: Any, x: Array) -> Array:
        for _ in range(3):
            x = jnp.tanh(x @ p["w"])
        return x

    _, blocks = build(forward, {"w": (16, 16)})
    assert backward(blocks) == [1, 2, 2]


def test_a_product_with_itself() -> None:
    def forward(p: Any, x: Array) -> Array:
        y = x @ p["a"]
        return jnp.einsum("bsd,btd->bst", y, y)

    _, blocks = build(forward, {"a": (16, 16)})
    assert backward(blocks) == [1, 2]


def test_a_frozen_sibling_has_no_gradient() -> None:
    """Both read x, and their results look alike; only the first is differentiated."""

    def forward(p: Any, x: Array) -> Array:
        trained = jnp.sort(x @ p["a"], axis=-1)
        return trained + jnp.flip(x @ jax.lax.stop_gradient(p["b"]), axis=-1)

    _, blocks = build(forward, {"a": (16, 16), "b": (16, 16)})
    assert seeds(blocks) == [1, 1]
    assert backward(blocks) == [1, 0]


def test_a_backward_rule_that_computes_again() -> None:
    """Attention as flash kernels do it: the backward rule makes the scores anew."""

    @jax.custom_vjp
    def act(x: Array, w: Array) -> Array:
        return jnp.tanh(x @ w)

    def again(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        x, w = saved
        slope = 1 - jnp.tanh(x @ w) ** 2
        return (g * slope) @ w.T, jnp.einsum("bsi,bsj->ij", x, g * slope)

    act.defvjp(lambda x, w: (act(x, w), (x, w)), again)
    _, blocks = build(lambda p, x: act(x, p["a"]) @ p["b"], {"a": (16, 32), "b": (32, 16)})
    assert backward(blocks) == [2, 2]


# --- the four models ---------------------------------------------------------------------

PER_LAYER = {  # backward contractions of each block of a layer
    "gpt": [2 + 4, 2, 2, 2],
    "bert": [2 + 4, 2, 2, 2],
    "llama": [6 + 4, 2, 4, 2],
}


@functools.cache
def traced(name: str, layers: int, scan: bool = False, checkpoint: bool = False) -> Graph:
    chosen = config(name, layers=layers, scan=scan, checkpoint=checkpoint)
    step, args = make_step(chosen, abstract=True)
    return trace(step, *args)


def turn(name: str) -> int:
    """Layers in one turn of the loop."""
    return 2 if name == "moe" else 1


@pytest.mark.parametrize("name", PER_LAYER)
def test_four_blocks_a_layer(name: str) -> None:
    blocks = build_blocks(traced(name, layers=3), (4,))
    counts = backward(blocks)
    layer = PER_LAYER[name]
    at = next(i for i in range(len(counts)) if counts[i : i + 4] == layer)
    assert counts[at : at + 12] == layer * 3
    assert [len(b.strategies((4,))) for b in blocks.blocks[at : at + 12]] == [3] * 12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_loop_has_the_blocks_of_its_layers(name: str, sequence: bool) -> None:
    """One turn of the loop against the same layers outside it.

    What is not a contraction may differ: autodiff saves other residuals in a loop, and a norm at
    its edge stays on its side.
    """
    straight, looped = (traced(name, turn(name), scan=scan) for scan in (False, True))
    mine = build_blocks(straight, (4,), sequence=sequence)
    theirs = build_blocks(looped, (4,), sequence=sequence)
    check_blocks(straight, mine)
    check_blocks(looped, theirs)
    assert [contractions(straight, b) for b in mine.blocks] == [
        contractions(looped, b) for b in theirs.blocks
    ]
    assert backward(mine) == backward(theirs)
    loops = [block.loop for block in theirs.blocks]
    first, last = loops.index(0), len(loops) - loops[::-1].index(0)
    assert last - first >= 4
    assert set(loops[first:last]) == {0}
    assert {*loops[:first], *loops[last:]} == {None}


def contractions(graph: Graph, block: Block) -> list[Any]:
    """A block's candidates, and its contractions with their splits."""
    found = [graph.equations[m] for m in block.members if graph.equations[m].primitive in SEEDING]
    splits = [(e.op.in_shapes, block.splits[e.outputs[0]]) for e in found]
    return [extents(block), len(block.seeds), splits]


SEEDING = ("dot_general", "conv_general_dilated", "gather")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scan", [False, True])
def test_recomputation_leaves_nothing_unmatched(name: str, scan: bool) -> None:
    plain, again = (
        traced(name, turn(name), scan=scan, checkpoint=checkpoint) for checkpoint in (False, True)
    )
    mine, theirs = build_blocks(plain, (4,)), build_blocks(again, (4,))
    check_blocks(plain, mine)
    check_blocks(again, theirs)
    assert any(b in theirs.recomputed.equations for block in theirs.blocks for b in block.backward)
    assert backward(mine) == backward(theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sequence", [False, True])
def test_equation_one_holds_on_the_models(name: str, sequence: bool) -> None:
    sizes = {"hidden": 16, "heads": 4, "seq": 4, "batch": 4, "vocab": 16, "kv_heads": 4}
    chosen = config(name, layers=turn(name), experts=4 if name == "moe" else None, **sizes)
    step, args = make_step(chosen, abstract=True)
    graph = trace(step, *args)
    for mesh_shape in ((4,), (2, 2)):
        blocks = build_blocks(graph, mesh_shape, sequence=sequence)
        check_blocks(graph, blocks)
        assert not [v for block in blocks.blocks for v in violations(graph, block)]


# --- bad input ---------------------------------------------------------------------------


def test_nothing_to_contract() -> None:
    graph = trace(training(lambda p, x: p["a"] * x), {"a": floats(4)}, floats(4))
    with pytest.raises(CfpError, match="contracts nothing"):
        build_blocks(graph, (2,))
