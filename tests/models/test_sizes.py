"""Named sizes are what they say, cost nothing to ask about, and can be changed."""

import jax
import pytest

from cfp import models

from .conftest import TINY

BILLIONS = {
    ("bert", "760m"): 0.76,
    ("gpt", "2.6b"): 2.6,
    ("gpt", "6.7b"): 6.7,
    ("moe", "7.1b"): 7.1,
}


@pytest.mark.parametrize(("name", "size"), BILLIONS)
def test_names_are_parameter_counts(name, size):
    # Alpa's names count one embedding: a head of its own comes on top.
    count = models.num_params(models.config(name, size, tied=True))
    assert count / 1e9 == pytest.approx(BILLIONS[name, size], rel=0.03)


def test_llama_7b_is_llama_2_7b():
    assert models.num_params(models.config("llama", "7b")) == 6_738_415_616


@pytest.mark.parametrize("name", models.NAMES)
def test_count_is_that_of_the_arrays(name, compiled):
    _, (state, *_) = compiled(TINY[name])
    assert models.num_params(TINY[name]) == sum(x.size for x in jax.tree.leaves(state.params))


@pytest.mark.parametrize("name", models.NAMES)
def test_large_sizes_are_abstract(name):
    *_, size = models.SIZES[name]
    step, args = models.make_step(models.config(name, size, layers=2, hidden=8192))
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(args))
    state, metrics = jax.eval_shape(step, *args)
    assert jax.tree.structure(state) == jax.tree.structure(args[0])
    assert metrics["loss"].shape == ()


def test_llama_7b_needs_no_memory():
    _, args = models.make_step(models.config("llama", "7b"))
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(args))
    assert len(args[0].params["layers"]) == 32


@pytest.mark.parametrize("name", models.NAMES)
def test_abstract_arguments_have_the_shapes_of_real_ones(name, compiled):
    _, real = compiled(TINY[name])
    _, shapes = models.make_step(TINY[name], abstract=True)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), real) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_cpu_sizes_divide_by_eight(name, size):
    config = models.config(name, size)
    for field in ("hidden", "heads", "ffn", "seq", "batch", "vocab", "experts"):
        assert getattr(config, field) % 8 == 0
    assert config.kv_heads % 4 == 0


def test_paths_read_as_the_user_writes_them():
    _, (state, *_) = models.make_step(models.config("gpt"), abstract=True)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    assert ".params['layers'][0]['qkv']" in paths
    assert ".step" in paths


def test_overrides_bring_along_what_follows():
    assert models.config("gpt", "small", layers=None) == models.SIZES["gpt"]["small"]
    wide = models.config("gpt", "small", hidden=512)
    assert (wide.heads, wide.kv_heads, wide.ffn) == (16, 16, 2048)
    odd = models.config("gpt", "6.7b", hidden=4000)  # no multiple of the head size, 128
    assert (odd.heads, odd.ffn) == (32, 16000)
    grouped = models.config("llama", "tiny", heads=16)
    assert (grouped.kv_heads, grouped.ffn) == (8, 192)
    assert models.config("llama", "7b", hidden=2048).ffn == 5504
    assert models.config("llama", "7b", hidden=2048, ffn=4096).ffn == 4096
