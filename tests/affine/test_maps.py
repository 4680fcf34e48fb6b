"""The algebra: laws, canonical form, text, and splits run piece by piece."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cfp.affine import Map, OpMap, follow, identity, op_map
from cfp.affine.factors import align

from .oracle import divisors, matrix
from .steps import Program, Step, chains, constant, dot, multiply, reduce_sum

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def maps(program: Program) -> list[Map]:
    return [step.op.between(step.operand(0), 0) for step in program.steps]


@settings(FAST, max_examples=400)
@given(chains(length=4))
def test_then_is_associative(program: Program) -> None:
    """Equal where both ways are exact, and always where all extents are powers of two.

    Elsewhere digits may not align: (a then b) can lose one that b then c would have restored,
    as in (8, 3) -> (6, 4) -> (8, 3). Both ways then still say no less than is needed.
    """
    assume(len(program.steps) >= 3)
    for a, b, c in zip(maps(program), maps(program)[1:], maps(program)[2:], strict=False):
        left, right = a.then(b).then(c), a.then(b.then(c))
        sizes = a.sizes + b.sizes + c.sizes
        if (left.exact and right.exact) or all(n & (n - 1) == 0 for n in sizes):
            assert left == right
            assert hash(left) == hash(right)
            assert left.show() == right.show()


def test_then_may_lose_what_a_later_map_restores() -> None:
    there = reshape_map((8, 3), (6, 4))
    back = reshape_map((6, 4), (8, 3))
    assert there.then(back).show() == "[a·^b, ^c] <~ [a·*d, *e]"
    assert there.then(back).sizes == (2, 4, 3, 4, 3)


@settings(FAST, max_examples=300)
@given(chains())
def test_identity_is_neutral(program: Program) -> None:
    for m, before, after in zip(maps(program), program.shapes, program.shapes[1:], strict=False):
        assert identity(before).then(m) == m.canonical() == m.then(identity(after))
        assert m.canonical().canonical() == m.canonical()


@settings(FAST, max_examples=300)
@given(chains())
def test_canonical_means_the_same(program: Program) -> None:
    for m, before, after in zip(maps(program), program.shapes, program.shapes[1:], strict=False):
        same = matrix(m.canonical(), after, before)
        np.testing.assert_array_equal(matrix(m, after, before), same)


def test_needs_of_one_element() -> None:
    m = reshape_map((2, 12), (2, 3, 4))
    assert m.needs((1, 2, 3)) == {(1, 11)}
    assert identity(()).needs(()) == {()}


def test_then_names_the_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"the target is \(2, 3\), the next source \(3, 2\)"):
        identity((2, 3)).then(identity((3, 2)))


def test_between_is_none_where_unrelated() -> None:
    op = op_map("optimization_barrier", {}, ((2,), (3,)), ((2,), (3,)))
    assert op.between(0, 1) is None
    assert op.between(1, 1) == Map((2, 3), ((1,),), ((1,),))


def test_check_refuses_a_map_that_does_not_fit() -> None:
    op = OpMap((4,), (((0,),),), (((0,), (0,)),))
    with pytest.raises(ValueError, match="one factor twice"):
        op.check([(4,)], [(4, 4)])
    with pytest.raises(ValueError, match="does not fit"):
        op.check([(5,)], [(4, 4)])


@settings(FAST, max_examples=300)
@given(st.lists(st.integers(2, 6), max_size=3), st.lists(st.integers(2, 6), max_size=3), st.data())
def test_align_finds_common_digits(left: list[int], right: list[int], data: st.DataObject) -> None:
    """Pieces multiply to their factors; a piece on both sides is the same digit of the index."""
    size = np.lcm(int(np.prod(left)), int(np.prod(right)))
    left, right = ([*shape, int(size // np.prod(shape))] for shape in (left, right))
    sizes, lefts, rights = align(left, right)
    for shape, pieces in ((left, lefts), (right, rights)):
        assert [int(np.prod([sizes[p] for p in part])) for part in pieces] == shape
    x = data.draw(st.integers(0, int(size) - 1))
    digits = [digits_of(x, sizes, sum(pieces, ())) for pieces in (lefts, rights)]
    for piece in digits[0].keys() & digits[1].keys():
        assert digits[0][piece] == digits[1][piece]


def digits_of(x: int, sizes: list[int], pieces: tuple[int, ...]) -> dict[int, int]:
    out = {}
    for piece in reversed(pieces):
        x, out[piece] = divmod(x, sizes[piece])
    return out


def reshape_map(before: tuple[int, ...], after: tuple[int, ...]) -> Map:
    return op_map("reshape", {"dimensions": None}, (before,), (after,)).between(0, 0)


@settings(FAST, max_examples=300)
@given(chains((dot, dot, multiply, reduce_sum), length=1))
def test_split_runs_piece_by_piece(program: Program) -> None:
    """Follow a split to the other operand and to the result, run each part on its chunks alone.

    Where the split reaches the result, the parts lie side by side in it; where a reduction
    consumes it, their sum completes it.
    """
    assume(program.steps)
    step, op = program.steps[0], program.steps[0].op
    x = np.arange(1, 1 + np.prod(program.shape), dtype="float64").reshape(program.shape)
    operands = [x, *map(constant, step.constants)]
    whole = run(step, operands)
    dims = op.operands[::-1] if step.swapped else op.operands
    for source in range(len(operands)):
        for dim, factors in enumerate(dims[source]):
            for parts in divisors(operands[source].shape[dim]):
                went = [follow(op.sizes, dims[source], to, dim, parts) for to in dims]
                went[source] = (dim, parts)
                to = follow(op.sizes, dims[source], op.results[0], dim, parts)
                split = [w is not None and w[1] == parts for w in went]
                pieces = [
                    run(step, [chunk(v, w[0], parts, p) if s else v
                               for v, w, s in zip(operands, went, split, strict=True)])
                    for p in range(parts)
                ]  # fmt: skip
                if to is not None and to[1] == parts:
                    np.testing.assert_allclose(np.concatenate(pieces, to[0]), whole)
                else:
                    assert factors[0] in op.reduced
                    np.testing.assert_allclose(sum(pieces), whole)


def run(step: Step, operands: list[np.ndarray]) -> np.ndarray:
    if step.primitive == "mul":  # its numpy form knows the full shape
        return operands[0] * operands[1]
    return step.run(*[v[None] for v in operands])[0]


def chunk(x: np.ndarray, dim: int, parts: int, p: int) -> np.ndarray:
    return np.split(x, parts, dim)[p]


@pytest.mark.parametrize(
    ("source", "target", "dim", "extent", "expected"),
    [
        (((0,), (1,)), ((1,), (0,)), 0, 4, (1, 4)),  # a transpose
        (((0, 1),), ((0,), (1,)), 0, 24, (0, 4)),  # split: only the major part leads
        (((0,), (1,)), ((0, 1),), 0, 4, (0, 4)),  # merged: the major one leads
        (((0,), (1,)), ((0, 1),), 1, 6, None),  # the minor one does not
        (((0, 1),), ((0, 1),), 0, 6, (0, 6)),  # a prefix longer than the extent
        (((0, 1),), ((0, 1),), 0, 9, (0, 3)),
        (((0,),), ((0,),), 0, 3, None),  # nothing divides both
        (((),), ((),), 0, 1, None),
    ],
)
def test_follow(source, target, dim, extent, expected) -> None:
    assert follow((4, 6), source, target, dim, extent) == expected
