"""Operations that compute each element from the elements at the same index.

    f_i(a) = a_i

Operands may be scalars, or have extent 1 where the result is longer: those are broadcast.
"""

from collections.abc import Mapping
from typing import Any

from cfp.affine.factors import Dims, Shape
from cfp.affine.maps import OpMap, Space

_NAMES = (
    # arithmetic
    "abs add add_any cbrt ceil clamp complex conj cos cosh div exp exp2 expm1 floor imag "
    "integer_pow log log1p log2 logistic max min mul mulhi neg nextafter one_minus_square pow "
    "real rem round rsqrt sign sin sinh sqrt square sub tan tanh "
    # special functions
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e digamma erf erf_inv erfc "
    "igamma igamma_grad_a igammac lgamma polygamma random_gamma_grad "
    "regularized_incomplete_beta zeta "
    # logic, bits, comparison
    "and clz eq eq_to ge gt is_finite le le_to lt lt_to ne not or population_count select_n "
    "shift_left shift_right_arithmetic shift_right_logical xor "
    # the same values, otherwise typed, named or placed
    "convert_element_type copy copy_p layout_constraint name pvary reduce_precision reshard "
    "sharding_constraint stage stop_gradient zeros_like "
    # random numbers from keys and counters of one shape
    "random_clone random_fold_in random_seed threefry2x32"
)
ELEMENTWISE = frozenset(_NAMES.split())

# Result i is operand i, untouched by the others.
PAIRWISE = frozenset(("device_put", "loop_enter", "loop_exit", "optimization_barrier"))


def elementwise(
    params: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]
) -> OpMap:
    space = Space()
    full = space.dims(outs[0])

    def dims(shape: Shape) -> Dims:
        if not shape or shape == outs[0]:
            return full if shape else ()
        return tuple([f if n > 1 else () for f, n in zip(full, shape, strict=True)])

    return space.op(tuple([dims(shape) for shape in ins]), (full,) * len(outs))


def pairwise(params: Mapping[str, Any], ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> OpMap:
    space = Space()
    dims = tuple([space.dims(shape) for shape in ins])
    feeds = tuple([frozenset([i]) for i in range(len(ins))])
    return space.op(dims, dims, feeds=feeds if len(ins) > 1 else None)
