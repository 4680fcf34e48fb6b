"""What the analysis must show of the built-in models and of models that are not ours."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import cfp
from cfp.blocks import SplitName
from cfp.models import config, make_step
from tests.blocks.check import check_blocks
from tests.foreign import MODELS, PLAIN
from tests.segments.check import check_segments


def analyze(name: str, mesh_shape: tuple[int, ...] = (4,), **options: Any) -> cfp.Analysis:
    step, args = make_step(config(name, **options), abstract=True)
    return cfp.analyze(step, *args, mesh_shape=mesh_shape)


def check(analysis: cfp.Analysis) -> None:
    check_blocks(analysis.graph, analysis.grouping)
    check_segments(analysis.graph, analysis.grouping, analysis.segmentation)


@pytest.mark.parametrize("name", ["bert", "gpt", "llama"])
def test_layers_have_four_blocks_and_81_plans_at_any_depth(name: str) -> None:
    kinds = set()
    for layers in (2, 12):
        analysis = analyze(name, layers=layers)
        (layer,) = (k for k in analysis.distinct_segments if k.times == layers)
        assert layer.strategies == (3, 3, 3, 3)
        assert layer.space == 81
        kinds.add(tuple(k.fingerprint for k in analysis.distinct_segments))
        if layers == 2:
            check(analysis)
    assert len(kinds) == 1, "depth adds no distinct segment"


def test_moe_has_a_dense_and_an_expert_layer() -> None:
    kinds = set()
    for layers in (4, 12):
        analysis = analyze("moe", layers=layers)
        check(analysis)
        dense, expert = (k for k in analysis.distinct_segments if k.times == layers // 2)
        assert dense.strategies == (3, 3, 3, 3)
        kinds.add(tuple(k.fingerprint for k in analysis.distinct_segments))
        run = analysis.segments[expert.representative].blocks
        products = [analysis.blocks[b] for b in run]
        experts = config("moe").experts
        batched = [
            (candidate.name, candidate.extent)
            for block in products
            for candidate in block.candidates
            if candidate.split_name is SplitName.GROUPS
            and analysis.graph.values[analysis.graph.equations[block.seeds[0]].inputs[1]].shape[:1]
            == (experts,)
        ]
        assert ("groups", experts) in batched, "the expert dim is a candidate"
    assert len(kinds) == 1


def test_qkv_layout_decides_whether_the_column_split_survives() -> None:
    head_major = analyze("gpt")
    stacked = analyze("gpt", qkv_layout="stacked")
    assert len(head_major.blocks) == 10
    assert "split does not keep output features" in stacked.blocks[1].ended_by
    # the attention products become blocks of their own
    assert len(stacked.blocks) == 14
    check(stacked)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt", "moe", "llama"])
def test_scan_has_the_blocks_and_segments_of_the_unrolled_model(
    name: str, checkpoint: bool
) -> None:
    plain = analyze(name, layers=4)
    scanned = analyze(name, layers=4, scan=True, checkpoint=checkpoint)
    check(scanned)
    assert [(k.times, k.strategies) for k in scanned.distinct_segments] == [
        (k.times, k.strategies) for k in plain.distinct_segments
    ]
    happening = sum(len(s.blocks) * s.times for s in scanned.segments)
    assert happening == len(plain.blocks)
    if name != "bert":  # a norm ends the bert layer: scanned, it stays in the body
        assert [k.fingerprint for k in scanned.distinct_segments] == [
            k.fingerprint for k in plain.distinct_segments
        ]


@pytest.mark.parametrize("name", MODELS)
def test_foreign_models_are_analysed_and_their_layers_found(name: str) -> None:
    step, args = MODELS[name](layers=3, abstract=True)
    analysis = cfp.analyze(step, *args, mesh_shape=(4,))
    check(analysis)
    assert not analysis.graph.opaque()
    assert [k.times for k in analysis.distinct_segments].count(3) == 1
    layer = next(k for k in analysis.distinct_segments if k.times == 3)
    assert len(layer.strategies) == (6 if name == "hf_gpt2" else 4)  # GPT-2's is [q|k|v]


@pytest.mark.parametrize("name", PLAIN)
def test_odd_functions_are_analysed(name: str) -> None:
    step, args = PLAIN[name](abstract=True)
    analysis = cfp.analyze(step, *args, mesh_shape=(4,))
    check(analysis)
    document = json.loads(json.dumps(analysis.to_json()))
    assert len(document["blocks"]) == len(analysis.blocks)
    opaque = {entry["primitive"] for entry in document["opaque"]}
    assert opaque == ({"while", "cond"} if name == "control_flow" else set())


@pytest.mark.parametrize("mesh_shape", [(1,), (2,), (8,), (2, 4), (2, 2, 2)])
def test_meshes(mesh_shape: tuple[int, ...]) -> None:
    analysis = analyze("gpt", mesh_shape=mesh_shape)
    check(analysis)
    axes = sum(size > 1 for size in mesh_shape)
    layer = analysis.distinct_segments[1]
    assert layer.strategies[1] == 3**axes


def test_sequence_dims_are_candidates_on_request() -> None:
    step, args = make_step(config("llama", seq=64), abstract=True)
    analysis = cfp.analyze(step, *args, mesh_shape=(4,), sequence=True)
    check(analysis)
    down = next(b for b in analysis.blocks if b.splits and len(b.candidates) == 4)
    assert [c.name for c in down.candidates][:2] == ["batch", "sequence"]


def test_bad_input_says_what_and_how() -> None:
    def broken(x):
        return x @ jnp.ones((3, 3))

    def nothing(x):
        return x + 1

    def fine(w, x):
        return x @ w

    x = jnp.ones((8, 4))
    w = jnp.ones((4, 4))
    cases = [
        (lambda: cfp.analyze(broken, x), "The step does not trace: TypeError"),
        (lambda: cfp.analyze(nothing, x), "contracts nothing"),
        (lambda: cfp.analyze(fine, w, x, mesh_shape=(3,)), "A mesh of 3 divides no dim"),
        (lambda: cfp.analyze(fine, w, "text"), "`x` is a str, not an array"),
        (lambda: cfp.analyze(42, x), "`step` is of type int, not a function"),
        (lambda: cfp.analyze(fine, w, x, mesh_shape=(0,)), "one positive size per axis"),
        (lambda: cfp.analyze(fine, w, x, mesh_shape="ab"), "one positive size per axis"),
    ]
    for call, message in cases:
        with pytest.raises(cfp.CfpError, match=r"^[A-Z`]") as caught:
            call()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_abstract_and_concrete_arguments_give_the_same_analysis() -> None:
    step, args = make_step(config("llama"))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    a, b = cfp.analyze(step, *args), cfp.analyze(step, *shapes)
    assert a.graph.show() == b.graph.show()
    assert a.segmentation.show(a.graph, a.grouping) == b.segmentation.show(b.graph, b.grouping)


def test_a_mesh_that_splits_little_is_noted() -> None:
    """3 divides the head's vocabulary (96) alone; on one axis of two it is said of that axis."""
    analysis = analyze("gpt", layers=2, mesh_shape=(2, 3))
    (note,) = analysis.notes
    share = analysis.split_share(3)
    assert 0 < share < 0.5
    assert analysis.split_share(2) == 1.0
    assert note == (
        f"An axis of 3 devices can split {share:.0%} of the step's FLOPs; every device computes "
        "the rest whole, whose sizes (batch 8, output features 64, input features 64) do not "
        "divide by 3. 2 or 4 would divide them."
    )
    assert analysis.to_json()["notes"] == [note]
    assert not analyze("gpt", layers=2, mesh_shape=(4,)).notes
