"""Layouts by their definition: which device holds which element."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cfp.affine import OpMap, op_map
from cfp.layouts import Layout, fits, halfway, local_shape, parts, to_spec, transfer, whole
from cfp.links.collectives import parse_collectives
from cfp.plan.pins import layout_of
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Resharding, resharding_request

FAST = settings(deadline=None, database=None, derandomize=True, max_examples=400)
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])
MESHES = st.sampled_from([(2,), (4,), (2, 2), (3, 2), (2, 1, 2), (2, 2, 2)])


@st.composite
def operations(draw: Any) -> tuple[OpMap, list[tuple[int, ...]]]:
    """The map of a small operation, and the shapes of its operands and results."""
    kind = draw(st.sampled_from(["dot_general", "transpose", "reshape", "reduce_sum", "add"]))
    a, b, c = draw(SIZES), draw(SIZES), draw(SIZES)
    params: dict[str, Any] = {}
    ins: list[tuple[int, ...]] = [(a, b, c)]
    outs: tuple[int, ...] = (a, b, c)
    if kind == "dot_general":
        d = draw(SIZES)
        ins = [(a, b, c), (a, c, d)]
        outs = (a, b, d)
        params = {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))}
    elif kind == "transpose":
        order = draw(st.permutations([0, 1, 2]))
        params = {"permutation": tuple(order)}
        outs = tuple(ins[0][i] for i in order)
    elif kind == "reshape":
        outs = draw(st.sampled_from([(a * b, c), (a, b * c), (a * b * c,), (b, a, c)]))
        params = {"new_sizes": outs, "dimensions": None}
    elif kind == "reduce_sum":
        params = {"axes": (draw(st.integers(0, 2)),)}
        outs = tuple(s for d, s in enumerate(ins[0]) if d not in params["axes"])
    else:
        ins = [(a, b, c), (a, b, c)]
    found = op_map(kind, params, tuple(ins), (outs,))
    assert found is not None
    return found, [*ins, outs]


def holds(layout: Layout, shape: tuple[int, ...], mesh: tuple[int, ...]) -> dict[Any, Any]:
    """Element -> per axis that splits the tensor, the coordinate of the devices that hold it."""
    counts = parts(layout, len(shape), mesh)
    found: dict[Any, Any] = {}
    for index in np.ndindex(*shape):
        chunk = [at * n // size for at, n, size in zip(index, counts, shape, strict=True)]
        place: dict[int, int] = {}
        for axis in reversed(range(len(mesh))):  # the last axis of a dim is the minor one
            dim = layout[axis]
            if dim is not None:
                chunk[dim], place[axis] = divmod(chunk[dim], mesh[axis])
        found[index] = place
    return found


@FAST
@given(operations(), MESHES, st.data())
def test_a_transferred_split_keeps_related_elements_together(
    operation: Any, mesh: tuple[int, ...], data: Any
) -> None:
    op, shapes = operation
    tensors = [*op.operands, *op.results]
    source, target = data.draw(st.sampled_from(list(itertools.permutations(range(len(shapes)), 2))))
    layout = tuple(
        data.draw(st.sampled_from([None, *range(len(shapes[source]))]), label=f"axis {axis}")
        for axis in range(len(mesh))
    )
    if not fits(layout, shapes[source], mesh):
        return
    moved = transfer(op.sizes, tensors[source], tensors[target], layout, mesh)
    assert fits(moved, shapes[target], mesh)
    here, there = holds(layout, shapes[source], mesh), holds(moved, shapes[target], mesh)
    for a, b in related(op, tensors[source], tensors[target]):
        for axis, at in there[b].items():
            assert here[a][axis] == at, f"axis {axis}: {a} and {b} lie apart"


def related(op: OpMap, source: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of elements that agree in every factor their tensors share."""
    factors = sorted({f for dims in (*op.operands, *op.results) for dim in dims for f in dim})

    def index(dims: Any, digits: dict[int, int]) -> tuple[int, ...]:
        at: list[int] = []
        for dim in dims:
            place = 0
            for factor in dim:
                place = place * op.sizes[factor] + digits[factor]
            at.append(place)
        return tuple(at)

    for values in itertools.product(*(range(op.sizes[f]) for f in factors)):
        digits = dict(zip(factors, values, strict=True))
        yield index(source, digits), index(target, digits)


@FAST
@given(st.lists(SIZES, min_size=1, max_size=3), MESHES, st.data())
def test_spec_and_back(shape: list[int], mesh: tuple[int, ...], data: Any) -> None:
    from jax.sharding import AbstractMesh

    dims = st.sampled_from([None, *range(len(shape))])
    layout = tuple(data.draw(dims) for _ in mesh)
    if not fits(layout, tuple(shape), mesh):
        return
    names = tuple("abc"[: len(mesh)])
    assert math.prod(local_shape(layout, tuple(shape), mesh)) * math.prod(
        size for size, dim in zip(mesh, layout, strict=True) if dim is not None
    ) == math.prod(shape)
    spec = to_spec(layout, names)

    assert layout_of(spec, "t", shape, AbstractMesh(mesh, names), "here") == layout


def test_spec_text() -> None:
    assert to_spec((0, 0), ("a", "b")) == P(("a", "b"))
    assert to_spec((1, None), ("a", "b")) == P(None, "a")
    assert to_spec(whole(2), ("a", "b")) == P()


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [((0,), (4, 3), True), ((1,), (4, 3), False), ((2,), (4, 3), False), ((None,), (3,), True)],
)
def test_fits(layout: Layout, shape: tuple[int, ...], expected: bool) -> None:
    assert fits(layout, shape, (2,)) is expected


splits = st.one_of(st.none(), st.integers(0, 2))


@given(st.lists(st.tuples(splits, splits), min_size=1, max_size=3))
def test_halfway_splits_first(pairs: list[tuple[int | None, int | None]]) -> None:
    source, target = (tuple(side) for side in zip(*pairs, strict=True))
    found = halfway(source, target)
    gathers = any(b is not None and a is None for b, a in pairs)
    fresh = {a for b, a in pairs if b is None and a is not None}
    assert (found is not None) == (gathers and bool(fresh) and not fresh & {*source})
    if found is not None:
        assert found not in (source, target)
        for (before, after), between in zip(pairs, found, strict=True):
            assert between == (after if before is None else before)  # nothing is sent on the way


def test_halfway_gathers_less() -> None:
    """Left to itself the compiler replicates the tensor."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    what = Resharding((8, 16), "float32", (0, None), (None, 1))
    job = resharding_request(Machine.of(mesh), mesh, what).make()
    exported = jax.export.deserialize(bytearray(job.module))
    jitted: Any = jax.jit(
        exported.call,
        in_shardings=exported.in_shardings_jax(mesh),
        out_shardings=exported.out_shardings_jax(mesh)[0],
    )
    text = jitted.lower(jax.ShapeDtypeStruct((8, 16), jnp.float32)).compile().as_text()
    (found,) = parse_collectives(text, 4)
    assert (found.kind, found.bytes) == ("all-gather", 8 * 8 * 4)
