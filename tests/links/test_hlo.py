"""Collectives of programs whose collectives are known, and of text in forms the CPU never emits."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from textwrap import dedent, indent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cfp.links.collectives import HloCollective, parse_collectives
from cfp.links.hlo import mesh_axes

DEVICES = 8
SHUFFLED = (3, 1, 6, 0, 7, 2, 5, 4)
MESHES = {
    "8": ((8,), range(8)),
    "2x4": ((2, 4), range(8)),
    "2x2x2": ((2, 2, 2), range(8)),
    "4x2 shuffled": ((4, 2), SHUFFLED),
    "2x2x2 shuffled": ((2, 2, 2), SHUFFLED),
}
# One device's array in the programs below.
LOCAL = (16, 8)
LOCAL_BYTES = 16 * 8 * 4


def mesh_of(name: str) -> Mesh:
    shape, order = MESHES[name]
    return Mesh(np.array(jax.devices())[list(order)].reshape(shape), tuple("abc"[: len(shape)]))


def compiled(fn: Callable[..., object], mesh: Mesh, *, count: int = 1) -> str:
    """The text of `fn` on `count` local arrays of shape LOCAL per device."""
    spec = P(mesh.axis_names)
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=(spec,) * count, out_specs=spec, check_vma=False)
    whole = jax.ShapeDtypeStruct((LOCAL[0] * mesh.size, LOCAL[1]), jnp.float32)
    return jax.jit(mapped).lower(*[whole] * count).compile().as_text()


def collectives(fn: Callable[..., object], mesh: Mesh, **options: int) -> tuple[HloCollective, ...]:
    return parse_collectives(compiled(fn, mesh, **options), mesh.size)


def axes_of(found: HloCollective, mesh: Mesh) -> tuple[int, ...] | None:
    return mesh_axes(found.groups, mesh.devices.shape, found.kind)


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [
        tuple(name for bit, name in enumerate(names) if chosen >> bit & 1)
        for chosen in range(1, 1 << len(names))
    ]


@pytest.mark.parametrize("name", MESHES)
def test_kind_bytes_and_axes_of_every_collective(name: str) -> None:
    mesh = mesh_of(name)
    for axes in subsets(mesh.axis_names):
        size = int(np.prod([mesh.shape[axis] for axis in axes]))
        cases = {
            "all-reduce": (partial(lax.psum, axis_name=axes), 1),
            "all-gather": (partial(lax.all_gather, axis_name=axes), size),
            "reduce-scatter": (partial(lax.psum_scatter, axis_name=axes, tiled=True), 1),
            "all-to-all": (
                partial(lax.all_to_all, axis_name=axes, split_axis=0, concat_axis=1, tiled=True),
                1,
            ),
        }
        for kind, (fn, factor) in cases.items():
            (found,) = collectives(fn, mesh)
            assert found.kind == kind
            assert found.bytes == LOCAL_BYTES * factor, (kind, axes)
            assert axes_of(found, mesh) == tuple(mesh.axis_names.index(axis) for axis in axes)
            assert {len(group) for group in found.groups} == {size}
            assert (found.times, found.exact_times) == (1, True)
            assert "shard_map" in found.pieces[0].op_name


@pytest.mark.parametrize("name", MESHES)
def test_permutes_name_the_axes_they_cross(name: str) -> None:
    mesh = mesh_of(name)
    for index, axis in enumerate(mesh.axis_names):
        size = mesh.shape[axis]
        ring = [(i, (i + 1) % size) for i in range(size)]
        (found,) = collectives(lambda x, a=axis, r=ring: lax.ppermute(x, a, r), mesh)
        assert (found.kind, found.bytes) == ("collective-permute", LOCAL_BYTES)
        assert len(found.groups) == mesh.size
        assert axes_of(found, mesh) == (index,)


def test_ids_are_positions_in_the_mesh_and_not_hardware_ids() -> None:
    mesh = mesh_of("4x2 shuffled")
    (found,) = collectives(lambda x: lax.psum(x, "b"), mesh)
    assert sorted(found.groups) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    hardware = [tuple(device.id for device in row) for row in mesh.devices]
    assert hardware[0] == (3, 1)

    # And those are the devices that are summed over: a device's value is its row of the mesh.
    x = jax.device_put(np.arange(8.0) // 2, NamedSharding(mesh, P(("a", "b"))))
    sums = jax.jit(
        jax.shard_map(
            lambda x: lax.psum(x, "b"), mesh=mesh, in_specs=P(("a", "b")), out_specs=P("a")
        )
    )(x)
    np.testing.assert_array_equal(sums, [0.0, 2.0, 4.0, 6.0])


@pytest.mark.parametrize("name", [name for name in MESHES if name != "8"])
def test_reshards_left_to_the_partitioner(name: str) -> None:
    """Device lists, transposed meshes and parts of axes, as the partitioner writes them."""
    mesh = mesh_of(name)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def reshard(before: P, after: P) -> list[tuple[str, int, tuple[int, ...] | None]]:
        move = jax.jit(
            lambda x: x + 1,
            in_shardings=NamedSharding(mesh, before),
            out_shardings=NamedSharding(mesh, after),
        )
        found = parse_collectives(move.lower(x).compile().as_text(), mesh.size)
        return [(each.kind, each.bytes, axes_of(each, mesh)) for each in found]

    whole, a, b = 64 * 64 * 4, mesh.shape["a"], mesh.shape["b"]
    assert reshard(P("b"), P()) == [("all-gather", whole, (1,))]
    assert reshard(P("a"), P()) == [("all-gather", whole, (0,))]
    assert reshard(P(("b", "a")), P()) == [("all-gather", whole, (0, 1))]
    assert reshard(P("a", "b"), P("a")) == [("all-gather", whole // a, (1,))]
    assert reshard(P("b", None), P(None, "b")) == [("all-to-all", whole // b, (1,))]
    assert reshard(P(), P("a", "b")) == []


def test_part_of_an_axis_spans_no_whole_axes() -> None:
    mesh = mesh_of("8")
    split = jax.jit(
        lambda x: x.reshape(4, 4, 32).sum(1),
        in_shardings=NamedSharding(mesh, P("a")),
        out_shardings=NamedSharding(mesh, P()),
    )
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    reduced, gathered = parse_collectives(split.lower(x).compile().as_text(), mesh.size)
    assert (reduced.kind, reduced.bytes) == ("all-reduce", 32 * 4)
    assert (gathered.kind, gathered.bytes) == ("all-gather", 4 * 32 * 4)
    assert set(map(frozenset, reduced.groups)) == {frozenset({i, i + 1}) for i in range(0, 8, 2)}
    assert set(map(frozenset, gathered.groups)) == {frozenset(range(i, 8, 2)) for i in (0, 1)}
    assert axes_of(reduced, mesh) is None
    assert mesh_axes(reduced.groups, (4, 2), reduced.kind) == (1,)
    assert mesh_axes(gathered.groups, (4, 2), gathered.kind) == (0,)


def test_loops_multiply_and_unknown_ones_say_so() -> None:
    mesh = mesh_of("2x4")

    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(lax.psum(x, "b")), None

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        x, _ = lax.scan(inner, x, None, length=5)
        return lax.psum(jnp.cos(x), "a"), None

    def program(x: jax.Array) -> jax.Array:
        x = lax.ppermute(x, "a", [(0, 1), (1, 0)])
        x, _ = lax.scan(outer, x, None, length=3)
        x = lax.while_loop(
            lambda x: lax.psum(x.sum(), "a") < 100.0, lambda x: x + lax.pmax(x, ("a", "b")), x
        )
        return lax.all_gather(x, "b", tiled=True)

    found = collectives(program, mesh)
    assert [(each.kind, axes_of(each, mesh), each.times, each.exact_times) for each in found] == [
        ("collective-permute", (0,), 1, True),
        ("all-reduce", (1,), 15, True),
        ("all-reduce", (0,), 3, True),
        ("all-reduce", (0,), 1, False),
        ("all-reduce", (0, 1), 1, False),
        ("all-gather", (1,), 1, True),
    ]


def test_branches_count_once_each() -> None:
    mesh = mesh_of("2x4")

    def program(x: jax.Array) -> jax.Array:
        choose = x[0, 0] > 0
        return lax.cond(choose, lambda x: lax.psum(x, "a"), lambda x: x + lax.pmax(x * 2, "b"), x)

    found = collectives(program, mesh)
    assert {axes_of(each, mesh) for each in found} == {(0,), (1,)}
    assert [each.times for each in found] == [1, 1]


def test_a_tree_is_summed_by_one_merged_collective() -> None:
    mesh = mesh_of("2x4")

    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        with jax.named_scope("first"):
            one = jnp.sin(x)
        with jax.named_scope("second"):
            two = jnp.cos(y)[:4]
        one, two = lax.psum((one, two), "a")
        return one.at[:4].add(two)

    (found,) = collectives(program, mesh, count=2)
    assert sorted(piece.shape for piece in found.pieces) == [(4, 8), (16, 8)]
    assert found.bytes == (4 + 16) * 8 * 4
    scope_of = {piece.shape: piece.op_name.split("/")[-2] for piece in found.pieces}
    assert scope_of == {(16, 8): "first", (4, 8): "second"}


def test_merged_gradients_are_told_apart() -> None:
    """Data parallel training sums every gradient in one all-reduce."""
    mesh = mesh_of("8")
    widths = (16, 24, 32, 40)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for layer, weight in enumerate(weights):
            with jax.named_scope(f"layer{layer}"):
                x = jnp.tanh(x @ weight)
        return (x**2).mean()

    weights = [
        jax.ShapeDtypeStruct((rows, columns), jnp.float32) for rows, columns in pairwise(widths)
    ]
    step = jax.jit(
        jax.grad(loss),
        in_shardings=(NamedSharding(mesh, P()), NamedSharding(mesh, P("a"))),
        out_shardings=NamedSharding(mesh, P()),
    )
    x = jax.ShapeDtypeStruct((64, widths[0]), jnp.float32)
    found = parse_collectives(step.lower(weights, x).compile().as_text(), mesh.size)
    pieces = [piece for each in found for piece in each.pieces]
    assert all(axes_of(each, mesh) == (0,) for each in found)
    assert sorted(piece.bytes for piece in pieces) == sorted(w.size * 4 for w in weights)
    for layer, weight in enumerate(weights):
        (piece,) = [piece for piece in pieces if sorted(piece.shape) == sorted(weight.shape)]
        assert f"layer{layer})" in piece.op_name, piece


HEAD = "HloModule made, is_scheduled=true, num_partitions=8\n\n"
ADD = """\
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y), metadata={op_name="add"}
}

"""


def entry(body: str) -> str:
    return f"{HEAD}{ADD}ENTRY %main () -> f32[] {{\n{indent(dedent(body).strip(), '  ')}\n}}\n"


def only(text: str) -> HloCollective:
    (found,) = parse_collectives(text, DEVICES)
    return found


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0,1}, {2,3}}", ((0, 1), (2, 3))),
        ("{}", (tuple(range(8)),)),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['axis_0'=4,'axis_1'=1] {'axis_0'}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh[a=2,b=2] {b}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=2], device_ids=(0,3,1,2) {'y'}", ((0, 3), (1, 2))),
        ("mesh['a'=8] {'a':(1)4}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=8] {'a':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        (
            "mesh['a'=4,'b'=2], device_ids=([2,2,2]T(0,2,1)) {'a':(2)2}",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
        ),
    ],
)
def test_group_formats(groups: str, expected: tuple[tuple[int, ...], ...]) -> None:
    text = entry(f"""
        %p = f32[8]{{0}} parameter(0)
        ROOT %r = f32[8]{{0}} all-reduce(%p), channel_id=1, replica_groups={groups}, \
            use_global_device_ids=true, to_apply=%add
    """)
    assert only(text).groups == expected


def test_a_group_format_nobody_knows_is_an_error() -> None:
    text = entry("ROOT %r = f32[8]{0} all-reduce(%p), replica_groups=torus[2,4], to_apply=%add")
    with pytest.raises(ValueError, match=r"groups of r: 'torus\[2,4\]"):
        parse_collectives(text, DEVICES)
    with pytest.raises(ValueError, match="ENTRY"):
        parse_collectives("module @jit_f {}", DEVICES)


@pytest.mark.parametrize(
    ("line", "kind", "sizes"),
    [
        ("f32[4,8]{1,0} all-reduce-start(%p), replica_groups={}", "all-reduce", [128]),
        ("(f32[4,8]{1,0}, f32[2]{0}) all-reduce-start(%p, %q)", "all-reduce", [128, 8]),
        ("((f32[4,8]{1,0}), f32[4,8]{1,0}) all-reduce-start(%p)", "all-reduce", [128]),
        ("(f32[4,8], f32[4,8], u32[]) all-reduce-start(%p)", "all-reduce", [128]),
        (
            "((f32[4,8], f32[2]), (f32[4,8], f32[2])) all-reduce-start(%p, %q)",
            "all-reduce",
            [128, 8],
        ),
        ("(f32[4,8]{1,0}, f32[32,8]{1,0}) all-gather-start(%p)", "all-gather", [1024]),
        (
            "((f32[4,8], f32[2]), (f32[32,8], f32[16])) all-gather-start(%p, %q)",
            "all-gather",
            [1024, 64],
        ),
        (
            "(f32[4,8]{1,0:T(8,128)}, f32[4,8]{1,0:T(8,128)S(1)}, u32[]{:S(2)}, u32[]) "
            "collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            [128],
        ),
        (
            "((f32[4,8], f32[2]), (f32[4,8], f32[2]), u32[], u32[]) "
            "collective-permute-start(%p, %q), source_target_pairs={}",
            "collective-permute",
            [128, 8],
        ),
        (
            "((f32[4,8]), f32[1,8]) reduce-scatter-start(f32[4,8]{1,0} %p), dimensions={0}",
            "reduce-scatter",
            [128],
        ),
        (
            "((f32[4,8], f32[2]), (f32[1,8], f32[1])) reduce-scatter-start(%p, %q)",
            "reduce-scatter",
            [128, 8],
        ),
        ("((f32[4,8]), f32[4,8]) all-to-all-start(%p), dimensions={0}", "all-to-all", [128]),
        ("f32[4,8]{1,0} collective-broadcast(%p), channel_id=1", "collective-broadcast", [128]),
        (
            "f32[4,8]{1,0} ragged-all-to-all(%p, %p, %q, %q, %q, /*index=5*/%q)",
            "ragged-all-to-all",
            [128],
        ),
    ],
)
def test_async_and_rare_forms(line: str, kind: str, sizes: list[int]) -> None:
    opcode = line.partition("(%")[0].rpartition(" ")[2].partition("(")[0]
    done = opcode.removesuffix("-start") + "-done"
    found = only(
        entry(f"""
            %p = f32[4,8]{{1,0}} parameter(0), metadata={{op_name="params['w']"}}
            %q = f32[2]{{0}} parameter(1), metadata={{op_name="params['b']"}}
            %start.1 = {line}, metadata={{op_type="t" op_name="jit(f)/both" stack_frame_id=3}}
            %update.1 = f32[] async-update(%start.1)
            ROOT %done.1 = f32[] {done}(%start.1), metadata={{op_name="jit(f)/both"}}
        """)
    )
    assert (found.kind, found.name) == (kind, "start.1")
    assert [piece.bytes for piece in found.pieces] == sizes
    names = ["params['w']", "params['b']"] if len(sizes) > 1 else ["jit(f)/both"]
    assert [piece.op_name for piece in found.pieces] == names


def test_a_collective_wrapped_in_an_async_computation_is_counted_once() -> None:
    text = (
        HEAD
        + ADD
        + dedent("""\
        %async_computation (param_0: f32[32], param_1: f32[16]) -> (f32[4], f32[2]) {
          %param_0 = f32[32]{0} parameter(0)
          %param_1 = f32[16]{0} parameter(1)
          ROOT %rs.1 = (f32[4]{0}, f32[2]{0}) reduce-scatter(%param_0, %param_1), \
            channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
        }, execution_thread="parallel"

        ENTRY %main (a: f32[32], b: f32[16]) -> (f32[4], f32[2]) {
          %a = f32[32]{0} parameter(0)
          %b = f32[16]{0} parameter(1)
          %one = f32[32]{0} add(%a, %a), metadata={op_name="jit(f)/one"}
          %two = f32[16]{0} add(%b, %b), metadata={op_name="jit(f)/two"}
          %rs-start = ((f32[32]{0}, f32[16]{0}), (f32[4]{0}, f32[2]{0})) \
            async-start(%one, %two), async_execution_thread="parallel", calls=%async_computation
          %rs-update = ((f32[32]{0}, f32[16]{0}), (f32[4]{0}, f32[2]{0})) \
            async-update(%rs-start), calls=%async_computation
          ROOT %rs-done = (f32[4]{0}, f32[2]{0}) async-done(%rs-update), calls=%async_computation
        }
        """)
    )
    found = only(text)
    assert (found.kind, found.name, found.groups) == ("reduce-scatter", "rs.1", (tuple(range(8)),))
    assert [(p.bytes, p.shape, p.op_name) for p in found.pieces] == [
        (128, (32,), "jit(f)/one"),
        (64, (16,), "jit(f)/two"),
    ]


def test_pieces_are_named_after_what_made_them() -> None:
    text = (
        HEAD
        + ADD
        + dedent("""\
        %wrapped (param_0: f32[8]) -> f32[8] {
          %param_0 = f32[8]{0} parameter(0)
          ROOT %copy.9 = f32[8]{0} copy(%param_0)
        }

        %rooted (param_0: f32[8]) -> f32[8] {
          %param_0 = f32[8]{0} parameter(0)
          ROOT %sine.9 = f32[8]{0} sine(%param_0), metadata={op_name="root of a fusion"}
        }

        %two_roots (param_0: f32[8]) -> (f32[8], f32[8]) {
          %param_0 = f32[8]{0} parameter(0)
          %left = f32[8]{0} sine(%param_0), metadata={op_name="left"}
          %right = f32[8]{0} cosine(%param_0), metadata={op_name="right"}
          ROOT %both = (f32[8]{0}, f32[8]{0}) tuple(%left, %right)
        }

        ENTRY %main (p: f32[8]) -> f32[] {
          %p = f32[8]{0} parameter(0), metadata={op_name="params[\\"w\\"]"}
          %made = f32[8]{0} negate(%p), metadata={op_name="made"}
          %bitcast.1 = f32[8]{0} bitcast(%made), metadata={op_name="moved"}
          %convert.1 = bf16[8]{0} convert(%bitcast.1)
          %f.1 = f32[8]{0} fusion(%made), kind=kLoop, calls=%wrapped
          %f.2 = f32[8]{0} fusion(%made), kind=kLoop, calls=%rooted
          %f.3 = f32[8]{0} fusion(%made), kind=kLoop, calls=%rooted, metadata={op_name="a fusion"}
          %f.4 = (f32[8]{0}, f32[8]{0}) fusion(%made), kind=kLoop, \
            calls=%two_roots, metadata={op_name="left"}
          %gte.1 = f32[8]{0} get-tuple-element(%f.4), index=1, metadata={op_name="left"}
          %nameless = f32[8]{0} negate(%made)
          ROOT %r = (f32[8]{0}, bf16[8]{0}, f32[8]{0}, f32[8]{0}, f32[8]{0}, \
            /*index=5*/f32[8]{0}, f32[8]{0}) all-reduce(%p, %convert.1, %f.1, %f.2, %f.3, \
            /*index=5*/%gte.1, %nameless), replica_groups={}, to_apply=%add, \
            metadata={op_name="all of them"}
        }
        """)
    )
    assert [piece.op_name for piece in only(text).pieces] == [
        'params["w"]',
        "made",
        "made",
        "root of a fusion",
        "a fusion",
        "right",
        "all of them",
    ]


def test_a_loop_states_its_trips_and_its_state_names_nothing() -> None:
    """A condition runs once more than its body."""
    text = (
        HEAD
        + ADD
        + dedent("""\
        %cond (c: (s32[], f32[8], f32[4])) -> pred[] {
          %c = (s32[], f32[8]{0}, f32[4]{0}) parameter(0)
          %n = s32[] get-tuple-element(%c), index=0
          %most = s32[] all-reduce(%n), channel_id=1, replica_groups={}, to_apply=%add
          ROOT %lt = pred[] compare(%most, %most), direction=LT
        }

        %body (b: (s32[], f32[8], f32[4])) -> (s32[], f32[8], f32[4]) {
          %b = (s32[], f32[8]{0}, f32[4]{0}) parameter(0), metadata={op_name="jit(f)"}
          %x = f32[8]{0} get-tuple-element(%b), index=1
          %y = f32[4]{0} get-tuple-element(%b), index=2
          %i = s32[] get-tuple-element(%b), index=0
          %r = (f32[8]{0}, f32[4]{0}) all-reduce(%x, %y), channel_id=2, replica_groups={}, \
            to_apply=%add, metadata={op_name="jit(f)/while/body/psum"}
          %x.1 = f32[8]{0} get-tuple-element(%r), index=0
          %y.1 = f32[4]{0} get-tuple-element(%r), index=1
          ROOT %t = (s32[], f32[8]{0}, f32[4]{0}) tuple(%i, %x.1, %y.1)
        }

        ENTRY %main (p: (s32[], f32[8], f32[4])) -> (s32[], f32[8], f32[4]) {
          %p = (s32[], f32[8]{0}, f32[4]{0}) parameter(0)
          ROOT %while.1 = (s32[], f32[8]{0}, f32[4]{0}) while(%p), condition=%cond, body=%body, \
            metadata={op_name="body=%gone"}, \
            backend_config="{\\"known_trip_count\\":{\\"n\\":\\"7\\"}}"
        }
        """)
    )
    asked, done = parse_collectives(text, DEVICES)
    assert (asked.bytes, asked.times, asked.exact_times) == (4, 8, True)
    assert (done.bytes, done.times, done.exact_times) == (48, 7, True)
    assert [piece.op_name for piece in done.pieces] == ["jit(f)/while/body/psum"] * 2


def test_an_all_to_all_of_a_tuple_is_one_tensor() -> None:
    text = entry("""
        %p = f32[8]{0} parameter(0), metadata={op_name="x"}
        %left = f32[4]{0} slice(%p), slice={[0:4]}, metadata={op_name="cut"}
        %right = f32[4]{0} slice(%p), slice={[4:8]}, metadata={op_name="cut"}
        ROOT %r = (f32[4]{0}, f32[4]{0}) all-to-all(%left, %right), channel_id=1, \
            replica_groups=[4,2]<=[8], metadata={op_name="jit(f)/all_to_all"}
    """)
    found = only(text)
    assert found.bytes == 32
    assert {piece.op_name for piece in found.pieces} == {"jit(f)/all_to_all"}


def test_a_nameless_collective_takes_its_operands_name() -> None:
    text = entry("""
        %p = f32[8]{0} parameter(0), metadata={op_name="x"}
        ROOT %r = f32[64]{0} all-gather(%p), replica_groups={}, dimensions={0}
    """)
    assert only(text).pieces[0].op_name == "x"


@pytest.mark.parametrize(
    ("array", "size"),
    [
        ("pred[9]", 9),
        ("s4[9]", 5),
        ("u4[8]", 4),
        ("s8[9]", 9),
        ("u64[9]", 72),
        ("f16[9]", 18),
        ("bf16[3,3]{1,0}", 18),
        ("f32[]", 4),
        ("f64[<=9]", 72),
        ("f8e4m3fn[9]", 9),
        ("f8e8m0fnu[9]", 9),
        ("c64[9]", 72),
        ("c128[9]", 144),
        ("f32[0,9]", 0),
    ],
)
def test_bytes_of_dtypes(array: str, size: int) -> None:
    found = only(entry(f"ROOT %r = {array} all-reduce(%p), replica_groups={{}}, to_apply=%add"))
    assert found.bytes == size
    assert found.pieces[0].dtype == array.partition("[")[0]


def test_mesh_axes() -> None:
    assert mesh_axes(((0,), (1,), (2,), (3,)), (2, 2), "all-reduce") == ()
    assert mesh_axes(((3, 1), (2, 0)), (2, 2), "all-reduce") == (0,)
    assert mesh_axes(((0, 3), (1, 2)), (2, 2), "all-reduce") is None
    assert mesh_axes(((0, 1),), (2, 2), "all-reduce") is None
    assert mesh_axes(((0, 1), (2, 3), (4, 5), (6, 7)), (2, 2), "all-reduce") is None
    assert mesh_axes(((0, 1), (2, 3)), (2, 1, 2), "all-gather") == (2,)
    assert mesh_axes(((0, 1), (0, 0)), (2, 2), "collective-permute") == (1,)
    assert mesh_axes(((0, 1), (1, 3)), (2, 2), "collective-permute") == (0, 1)
    assert mesh_axes((), (2, 2), "collective-permute") == ()


def test_reading_a_long_program_takes_linear_time() -> None:
    def text(layers: int) -> str:
        shape = ", ".join(["f32[8,1024]{1,0:T(8,128)}"] * 4)
        lines = [
            f'%x.{i + 1} = ({shape}) fusion(%x.{i}), kind=kLoop, metadata={{op_name="{i}"}}'
            if i % 10
            else f"%x.{i + 1} = ({shape}) all-gather(%x.{i}, %x.{i}, %x.{i}, %x.{i}), "
            "channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}"
            for i in range(layers)
        ]
        return entry("\n".join(lines))

    def seconds(layers: int) -> float:
        source, start = text(layers), time.perf_counter()
        assert len(parse_collectives(source, DEVICES)) == layers // 10
        return time.perf_counter() - start

    short = min(seconds(2_000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(3)) < 40 * short
