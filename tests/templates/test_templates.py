"""Templates on any step: what they split, and what they say where they cannot."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cfp
from cfp import models, templates
from cfp.errors import CfpError
from cfp.plan import Plan
from tests.foreign.plain import accumulation
from tests.plan.steps import mesh_of, mlp_args, mlp_step, model


def split_names(plan: Plan, axis: int = 0) -> list[str | None]:
    return [block.splits[axis] for segment in plan.segments for block in segment.blocks]


def specs(plan: Plan, part: str) -> dict[str, P]:
    shardings = [s.spec for s in jax.tree.leaves(plan.in_shardings)]
    named = zip([t.path for t in plan.arguments], shardings, strict=True)
    return {path.split(part)[1]: spec for path, spec in named if part in path}


def test_data_parallel() -> None:
    step, args = model("gpt")
    plan = templates.data_parallel(step, *args, mesh=mesh_of(2, 2))
    assert set(split_names(plan, 0)) == set(split_names(plan, 1)) == {"batch"}
    assert set(specs(plan, "state.params").values()) == {P()}
    assert set(specs(plan, "batch").values()) == {P(("x", "y"))}


def test_megatron() -> None:
    step, args = model("gpt")
    plan = templates.megatron(step, *args, mesh=mesh_of(2, 4))
    assert split_names(plan, 1) == [
        "table rows",
        "output features",
        "input features",
        "output features",
        "input features",
        "output features",
    ]
    assert set(split_names(plan, 0)) == {"batch"}
    found = specs(plan, "state.params")
    layer = "['layers'][0]"
    assert found[f"{layer}['qkv']"] == found[f"{layer}['up']"] == P(None, "y")
    assert found[f"{layer}['out']"] == found[f"{layer}['down']"] == P("y")
    assert found[f"{layer}['qkv_bias']"] == P("y")
    assert found[f"{layer}['out_bias']"] == P()
    assert found["['tokens']"] == P("y")
    assert found["['head']"] == P(None, "y")
    assert specs(plan, ".mu") == specs(plan, ".nu") == found
    other = templates.megatron(step, *args, mesh=mesh_of(2, 4), axis="x")
    assert set(split_names(other, 1)) == {"batch"}
    with pytest.raises(CfpError, match="`axis` is 'model'; the mesh has x, y"):
        templates.megatron(step, *args, mesh=mesh_of(2, 4), axis="model")


def test_zero1_and_fsdp() -> None:
    step, args = model("gpt", scan=True)
    zero1 = templates.zero1(step, *args, mesh=mesh_of(4))
    fsdp = templates.fsdp(step, *args, mesh=mesh_of(4))
    assert set(specs(zero1, "state.params").values()) == {P()}
    assert specs(fsdp, "state.params") == specs(fsdp, ".mu") == specs(zero1, ".mu")
    found = specs(fsdp, "state.params")
    assert found["['layers']['up']"] == P(None, None, "x")  # never the dim the loop runs over
    assert found["['layers']['down']"] == P(None, "x")
    assert all("x" in spec for spec in found.values())
    memory = {
        name: getattr(templates, name)(step, *args, mesh=mesh_of(4)).compiled().memory_analysis()
        for name in ("data_parallel", "zero1", "fsdp")
    }
    sizes = [memory[name].argument_size_in_bytes for name in ("data_parallel", "zero1", "fsdp")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 0.3 * sizes[0]


@pytest.mark.parametrize(
    ("name", "options"), [("llama", {}), ("gpt", {}), ("llama", {"scan": True, "checkpoint": True})]
)
def test_fsdp_gathers_weights_and_sums_gradients(name: str, options: dict[str, bool]) -> None:
    """Nothing else is sent: no activation moves, however weights lie."""
    step, args = model(name, **options)
    plan = templates.fsdp(step, *args, mesh=mesh_of(4))
    found = plan.collectives()
    assert {c.kind for c in found} == {"all-gather", "all-reduce"}
    sizes = {tensor.shape for tensor in plan.arguments if tensor.path.startswith("state.params")}
    sizes |= {shape[1:] for shape in sizes}  # one layer's slice of stacked weights
    for collective in found:
        for origin in collective.origins:
            assert origin.role != "unknown"
            if collective.kind == "all-gather":
                assert origin.shape in sizes, origin.show()
            else:
                assert origin.role == "backward" or not origin.shape, origin.show()


@pytest.mark.parametrize("template", templates.__all__)
@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4), (1, 1)], ids=str)
def test_odd_meshes(template: str, shape: tuple[int, ...]) -> None:
    plan = getattr(templates, template)(mlp_step, *mlp_args(), mesh=mesh_of(*shape))
    cfp.verify(mlp_step, *mlp_args(), plan=plan)
    if shape == (1, 1):
        assert not plan.collectives()


@pytest.mark.parametrize("width", [8, 12])  # 8 devices divide one, which is still no batch
@pytest.mark.parametrize("template", ["data_parallel", "zero1", "fsdp"])
def test_a_batch_smaller_than_the_mesh_is_refused(template: str, width: int) -> None:
    make = getattr(templates, template)
    reason = rf"{template} .* 8 parts.* work on 4 rows .*`x` \[4, {width}\].*Use a mesh"
    with pytest.raises(CfpError, match=reason):
        make(mlp_step, *mlp_args(rows=4, width=width), mesh=mesh_of(8))


def test_keys_of_the_old_kind_are_no_batch() -> None:
    def step(params: Any, key: Any, x: Any, y: Any) -> Any:
        noise = jax.random.normal(jax.random.wrap_key_data(key), x.shape)
        return mlp_step(params, x + 0.1 * noise, y)

    params, x, y = mlp_args()
    args = (params, jax.random.key_data(jax.random.key(0)), x, y)
    plan = templates.data_parallel(step, *args, mesh=mesh_of(2))
    assert [s.spec for s in plan.in_shardings[1:]] == [P(), P("x"), P("x")]
    cfp.verify(step, *args, plan=plan)


def test_a_sequence_that_divides_is_no_batch() -> None:
    step, args = model("gpt")  # 8 rows of 32
    devices = np.array([jax.devices()[0]] * 16)
    with pytest.raises(CfpError, match=r"into 16 parts.*`batch\['labels'\]` \[8, 32\]"):
        templates.data_parallel(step, *args, mesh=jax.sharding.Mesh(devices, ("x",)))


def test_a_batch_smaller_than_the_mesh_is_no_trouble_for_others() -> None:
    args = mlp_args(rows=3)
    for template in ("megatron", "alpa"):
        plan = getattr(templates, template)(mlp_step, *args, mesh=mesh_of(8))
        cfp.verify(mlp_step, *args, plan=plan)


def test_dims_that_do_not_divide() -> None:
    args = mlp_args(hidden=6, width=6)
    with pytest.raises(CfpError, match="megatron splits weights into 4 parts, and no block"):
        templates.megatron(mlp_step, *args, mesh=mesh_of(4))
    plan = templates.fsdp(mlp_step, *args, mesh=mesh_of(4))  # what does not divide stays whole
    assert {s.spec for s in jax.tree.leaves(plan.in_shardings[0])} == {P()}
    cfp.verify(mlp_step, *args, plan=plan)


def test_heads_that_do_not_divide() -> None:
    """Products are split all the same; attention between them is not."""
    step, args = models.make_step(models.config("gpt", layers=1, hidden=48, heads=6))
    plan = templates.megatron(step, *args, mesh=mesh_of(4))
    found = split_names(plan)
    assert None in found
    assert {"output features", "input features"} <= set(found)
    cfp.verify(step, *args, plan=plan)


def test_batch_under_a_loop_is_not_the_loops_dim() -> None:
    """Gradient accumulation: the data's first dim is run over, the second is the batch."""

    def step(w: Any, micro: Any) -> Any:
        def turn(total: Any, x: Any) -> tuple[Any, None]:
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
            return total + grad, None

        total, _ = jax.lax.scan(turn, jnp.zeros_like(w), micro)
        return w - 0.1 * total

    random = np.random.default_rng(0)
    args = (random.normal(size=(8, 16)), random.normal(size=(4, 8, 8)))
    args = tuple(a.astype(np.float32) for a in args)
    plan = templates.data_parallel(step, *args, mesh=mesh_of(4))
    assert plan.in_shardings[1].spec == P(None, "x")
    cfp.verify(step, *args, plan=plan)


@pytest.mark.parametrize("loop", accumulation.LOOPS)
@pytest.mark.parametrize("stacked", [True, False], ids=["scanned layers", "layers"])
def test_the_rows_of_a_micro_batch_are_split(loop: str, stacked: bool) -> None:
    step, args = accumulation.make_step(abstract=True, loop=loop, stacked=stacked)
    for template in (templates.data_parallel, templates.zero1, templates.fsdp):
        plan = template(step, *args, mesh=mesh_of(8))  # 16 rows, 8 at a time
        assert set(split_names(plan)) == {"batch"}


def test_accumulated_gradients() -> None:
    """Recomputed in the backward pass, in bfloat16, with a loss scale: only sums are sent."""
    step, args = accumulation.make_step(layers=1)
    plan = templates.data_parallel(step, *args, mesh=mesh_of(2))
    assert {c.kind for c in plan.collectives()} == {"all-reduce"}
    assert set(specs(plan, "params").values()) == {P()}
    cfp.verify(step, *args, plan=plan)
    sharded = templates.fsdp(step, *args, mesh=mesh_of(2))
    assert specs(sharded, "params")["['head']"] != P()
    cfp.verify(step, *args, plan=sharded)


def test_a_micro_batch_smaller_than_the_mesh_is_refused() -> None:
    step, args = accumulation.make_step(abstract=True, batch=16, micro_batches=4)
    reason = r"into 8 parts.* work on 4 rows at a time \(`batch\['tokens'\]` \[16, 16\]\)"
    with pytest.raises(CfpError, match=reason):
        templates.data_parallel(step, *args, mesh=mesh_of(8))


def test_weights_on_the_left() -> None:
    """The data have their features first."""

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((params["down"] @ jnp.tanh(params["up"] @ x) - y) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    shapes = ({"up": (16, 8), "down": (12, 16)}, (8, 20), (12, 20))
    random = np.random.default_rng(0)
    args = jax.tree.map(
        lambda shape: random.normal(size=shape).astype(np.float32),
        shapes,
        is_leaf=lambda leaf: isinstance(leaf, tuple) and isinstance(leaf[0], int),
    )
    plan = templates.data_parallel(step, *args, mesh=mesh_of(4))
    assert [s.spec for s in plan.in_shardings[1:]] == [P(None, "x")] * 2
    cfp.verify(step, *args, plan=plan)
    plan = templates.megatron(step, *args, mesh=mesh_of(4))
    assert split_names(plan) == ["output features", "input features"]
    assert {k: s.spec for k, s in plan.in_shardings[0].items()} == {
        "up": P("x"),
        "down": P(None, "x"),
    }
    cfp.verify(step, *args, plan=plan)


def test_megatron_with_sequence_parallelism() -> None:
    """The sums go on split by rows: gathered where the next block reads them, and the device keeps
    less between. On two axes the batch is taken, and the rows are the sequence."""
    step, args = model("gpt", seq=64)
    for shape, axis, spec in [((4,), 0, P("x")), ((2, 4), 1, P("x", "y"))]:
        plain = templates.megatron(step, *args, mesh=mesh_of(*shape))
        split = templates.megatron(step, *args, mesh=mesh_of(*shape), sequence_parallel=True)
        assert split.name == "megatron_sp"
        names = [name and name.replace(" (split stream)", "") for name in split_names(split, axis)]
        assert names == split_names(plain, axis) != split_names(split, axis)
        assert specs(split, "state.params['layers']") == specs(plain, "state.params['layers']")
        stream = (args[1]["tokens"].shape[0], 64, 64)
        lies = [
            layout
            for value, layout in split.known("test").layouts.values.items()
            if split.known("test").analysis.graph.values[value].shape == stream
        ]
        wanted = tuple(spec.index(name) for name in "xy"[: len(shape)])
        assert 2 * lies.count(wanted) > len(lies)
        kinds = [{one.kind for one in plan.collectives()} for plan in (plain, split)]
        assert "all-gather" in kinds[1] - kinds[0]
        memory = [plan.compiled().memory_analysis().temp_size_in_bytes for plan in (plain, split)]
        assert memory[1] < 0.8 * memory[0]
    cfp.verify(step, *args, plan=split)


@pytest.mark.parametrize("name", templates.__all__)
def test_a_mesh_without_devices_has_the_same_template(name: str) -> None:
    make = getattr(templates, name)
    step, args = model("gpt")
    here = make(step, *args, mesh=mesh_of(2, 2))
    there = make(step, *args, mesh=jax.sharding.AbstractMesh((2, 2), ("x", "y")))
    assert [t.layout for t in there.arguments] == [t.layout for t in here.arguments]


def test_one_long_example_is_split_by_its_positions() -> None:
    step, args = model("gpt", batch=1, seq=64)
    plan = templates.megatron_sp(step, *args, mesh=mesh_of(4))
    layouts, graph = plan.known("test").layouts, plan.known("test").analysis.graph
    stream = [layouts.values[v] for v in layouts.values if graph.values[v].shape == (1, 64, 64)]
    assert 2 * stream.count((1,)) > len(stream)
    cfp.verify(step, *args, plan=plan)
