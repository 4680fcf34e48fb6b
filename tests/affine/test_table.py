"""The table: what it covers, what is opaque, and what its maps look like."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cfp.affine import RULES, OpMap, follow, op_map
from cfp.affine.elementwise import ELEMENTWISE

from .oracle import FINITE, Case, map_of, run

# Primitives of jax.lax without a rule. A block ends there, and the analysis lists them.
OPAQUE = {
    # control flow and calls: inlined, kept as loops, or opaque, by the trace
    "cond", "scan", "while", "custom_linear_solve",
    # tokens and sinks carry no elements
    "after_all", "create_token", "dce_sink",
    # collectives: the step is sharded by hand there
    "all_gather", "all_to_all", "axis_index", "pmax", "pmin", "ppermute", "psum",
    "ragged_all_to_all",
    # no training step of ours has them; the general form of select_and_scatter_add
    "select_and_scatter",
}  # fmt: skip

MUST_HAVE = """
    add and argmax argmin bitcast_convert_type broadcast_in_dim clamp concatenate
    conv_general_dilated convert_element_type copy cos cumsum cumprod cummax cummin cumlogsumexp div
    dot_general dynamic_slice dynamic_update_slice eq erf erf_inv exp gather ge gt integer_pow iota
    is_finite le log log1p logistic loop_enter loop_exit loop_slice loop_stack lt max min mul ne neg
    not optimization_barrier or pad pow random_bits random_fold_in random_gamma random_seed
    random_split random_unwrap random_wrap reduce_and reduce_max reduce_min reduce_or
    reduce_precision reduce_prod reduce_sum reduce_xor rem reshape rev rng_bit_generator rng_uniform
    round rsqrt scatter scatter-add scatter-max scatter-min scatter-mul select_n
    shift_right_logical sign sin slice sort split sqrt square squeeze stop_gradient sub tanh
    threefry2x32 top_k transpose xor add_any
"""


def lax_primitives() -> set[str]:
    return {getattr(lax, name).name for name in dir(lax) if name.endswith("_p")}


def test_what_training_steps_need_is_there() -> None:
    assert set(MUST_HAVE.split()) - RULES.keys() == set()


def test_every_lax_primitive_has_a_rule_or_is_opaque_on_purpose() -> None:
    new = lax_primitives() - RULES.keys() - OPAQUE
    assert not new, f"New in JAX {jax.__version__}: give {sorted(new)} a rule, or list as opaque."
    assert not OPAQUE & RULES.keys()


def test_unknown_primitives_have_no_map() -> None:
    assert op_map("made_up", {}, ((2,),), ((2,),)) is None


ALIASES = {
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "not": lax.bitwise_not,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 10),
    "convert_element_type": lambda x: lax.convert_element_type(x, jnp.int32),
    "select_n": lambda x, y: lax.select_n(x > 4, x, y + 50),
    "clamp": lambda x: lax.clamp(x, 2 * x, 3 * x),
}  # fmt: skip


def test_elementwise_primitives_are_elementwise() -> None:
    """Every one that jax.lax offers by its name, on floats or integers of any count of operands."""
    cases: dict[str, Case] = {}
    for name in sorted(ELEMENTWISE):
        fn = ALIASES.get(name, getattr(lax, name, None))
        for dtype in ("float32", "int32") if callable(fn) else ():
            for many in (1, 2, 3):
                inputs = [np.arange(i + 1, i + 7).reshape(2, 3).astype(dtype) for i in range(many)]
                if name not in cases and _does(name, fn, inputs):
                    cases[name] = Case(fn, inputs, name, poison=(np.nan, 0.5, *FINITE))
    run(list(cases.values()))
    for case in cases.values():
        for truth in case.truth[0]:
            assert not (truth & ~np.eye(6, dtype=bool)).any(), case.name
    assert len(cases) >= 60, sorted(ELEMENTWISE - cases.keys())


def _does(name: str, fn, inputs: list[np.ndarray]) -> bool:
    try:
        jaxpr = jax.make_jaxpr(fn)(*inputs)
    except (TypeError, ValueError, AttributeError):
        return False
    return name in [eqn.primitive.name for eqn in jaxpr.eqns] and len(jaxpr.out_avals) == 1


def text(fn, *shapes: tuple[int, ...], dtype="float32") -> str:
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return "; ".join(map_of(eqn).show() for eqn in jax.make_jaxpr(fn)(*args).eqns)


INDEX = np.zeros((2, 1), "int32")
ROWS = lax.ScatterDimensionNumbers((1,), (0,), (0,))
PATCHES = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lax.add, [(2, 3), (2, 3)], "[a, b] <- [a, b], [a, b]"),
        (lambda x: x * 2.0, [(2, 3)], "[a, b] <- [a, b], []"),
        (lax.mul, [(2, 3), (1, 3)], "[a, b] <- [a, b], [1, b]"),
        (jnp.matmul, [(5, 2, 3), (5, 3, 4)], "[a, b, c] <- [a, b, +d], [a, +d, c]"),
        (lambda x: x.reshape(3, 4, 5), [(12, 5)], "[a, b, c] <- [a·b, c]"),
        (lambda x: x.reshape(4, 6), [(6, 4)], "[a·^b, ^c·d] <~ [a·*e, *f·d]"),
        (lambda x: x.T, [(2, 3)], "[a, b] <- [b, a]"),
        (lambda x: lax.broadcast_in_dim(x, (4, 2), (1,)), [(2,)], "[^a, b] <- [b]"),
        (lambda x: x.sum(0), [(2, 3)], "[a] <- [+b, a]"),
        (lambda x: lax.argmax(x, 0, np.int32), [(2, 3)], "[a] <- [*b, a]"),
        (lambda x: lax.slice(x, (0, 2), (3, 4)), [(3, 8)], "[a, b] <~ [a, *c·b]"),
        (lambda x: lax.slice(x, (0, 1), (3, 8), (1, 2)), [(3, 8)], "[a, b] <~ [a, b·*c]"),
        (lambda x: lax.slice(x, (0, 1), (3, 7)), [(3, 7)], "[a, ^b] <~ [a, *c]"),
        (lambda x: lax.split(x, (4, 8), 1), [(2, 12)], "[a, b], [a, ^c·b] <~ [a, *d·b]"),
        (lambda x, y: lax.concatenate([x, y], 0), [(4,), (8,)], "[^a·b] <~ [b], [*c·b]"),
        (lambda x: lax.rev(x, (0,)), [(2, 3)], "[^a, b] <~ [*c, b]"),
        (lambda x: lax.cumsum(x, 1), [(2, 3)], "[a, ^b] <~ [a, *c]"),
        (lambda x: lax.top_k(x, 2), [(2, 3)], "[a, ^b], [a, ^b] <~ [a, *c]"),
        (lambda x: jnp.tile(x, (2, 1)), [(2, 3)], "[^a·b, c] <- [b, c]"),
        (
            lambda x: lax.gather(x, INDEX, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3)),
            [(7, 3)],
            "[a, b] <~ [+c, b], [a, 1]",
        ),
        (
            lambda x, u: lax.scatter_add(x, INDEX, u, ROWS),
            [(7, 3), (2, 3)],
            "[a, b] <~ [a, b], [+c, 1], [+c, b]",
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (4, 4), "VALID", dimension_numbers=PATCHES),
            [(2, 8, 12, 3), (4, 4, 3, 5)],
            "[a, b, c, d] <- [a, b·+e, c·+f, +g], [+e, +f, +g, d]",
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=PATCHES),
            [(2, 8, 8, 3), (3, 1, 3, 5)],
            "[a, ^b, c, d] <~ [a, *e, c, +f], [+g, 1, +f, d]",
        ),
        (
            lambda x, y: lax.optimization_barrier((x, y)),
            [(2,), (3,)],
            "[a], [b] <- [a], [b] (0<-0, 1<-1)",
        ),
    ],
)  # fmt: skip
def test_golden_text(fn, shapes, expected) -> None:
    assert text(fn, *shapes) == expected


@pytest.mark.parametrize(
    ("primitive", "ins", "outs", "expected"),
    [
        ("loop_slice", ((5, 2, 3),), ((2, 3),), "[a, b] <~ [*c, a, b]"),
        ("loop_stack", ((2, 3),), ((5, 2, 3),), "[^a, b, c] <~ [b, c]"),
        ("loop_enter", ((2, 3),), ((2, 3),), "[a, b] <- [a, b]"),
        ("loop_exit", ((2, 3), ()), ((2, 3), ()), "[a, b], [] <- [a, b], [] (0<-0, 1<-1)"),
        ("random_wrap", ((3, 2),), ((3,),), "[a] <- [a, *b]"),
        ("random_bits", ((3,),), ((3, 4, 5),), "[a, ^b, ^c] <- [a]"),
        ("iota", (), ((3, 4),), "[^a, ^b] <-"),
    ],
)
def test_golden_text_of_what_lax_cannot_call(primitive, ins, outs, expected) -> None:
    op = op_map(primitive, {}, ins, outs)
    op.check(ins, outs)
    assert op.show() == expected


def test_the_fused_projection_splits_only_head_major() -> None:
    """[q|k|v] columns do not survive the split; each head's q, k, v together do (design)."""

    def split(shape: tuple[int, ...], sizes: tuple[int, ...], at: int) -> OpMap:
        x = jax.ShapeDtypeStruct(shape, "float32")
        return map_of(jax.make_jaxpr(lambda x: lax.split(x, sizes, at))(x).eqns[0])

    op = split((2, 24), (8, 8, 8), 1)
    assert follow(op.sizes, op.operands[0], op.results[0], 1, 24) is None
    op = split((2, 4, 6), (2, 2, 2), 2)
    assert follow(op.sizes, op.operands[0], op.results[0], 1, 4) == (1, 4)
