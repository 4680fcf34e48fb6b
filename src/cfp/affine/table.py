"""The table: primitive -> rule. A new primitive is a line here, or a few in its rule's file.

A rule reads an equation's params and its operands' and results' shapes and writes the factors
down. Primitives without a rule are opaque: nothing is known of what their elements need.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from cfp.affine import contraction, elementwise, indexing, reshape, structural, window
from cfp.affine.factors import Shape
from cfp.affine.maps import OpMap

Rule = Callable[[Mapping[str, Any], tuple[Shape, ...], tuple[Shape, ...]], OpMap]

_GROUPS: tuple[tuple[str, Rule], ...] = (
    ("dot_general", contraction.dot_general),
    ("conv_general_dilated", contraction.conv_general_dilated),
    (
        "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add",
        window.reduce_window,
    ),
    ("select_and_scatter_add", window.select_and_scatter_add),
    ("gather", indexing.gather),
    ("scatter", indexing.scatter),
    (
        "scatter-add scatter-sub scatter-mul scatter-min scatter-max scatter_add scatter_mul "
        "scatter_min scatter_max",
        indexing.scatter_reduce,
    ),
    ("sort", indexing.sort),
    ("top_k approx_top_k", indexing.top_k),
    ("fft", indexing.fft),
    ("reshape", reshape.reshape),
    ("transpose", structural.transpose),
    ("broadcast_in_dim", structural.broadcast_in_dim),
    ("squeeze", structural.squeeze),
    ("expand_dims", structural.expand_dims),
    ("slice", structural.slice_),
    ("pad", structural.pad),
    ("dynamic_slice", structural.dynamic_slice),
    ("dynamic_update_slice", structural.dynamic_update_slice),
    ("concatenate", structural.concatenate),
    ("split", structural.split),
    ("stack", structural.stack),
    ("unstack", structural.unstack),
    ("tile", structural.tile),
    ("rev", structural.rev),
    ("cumsum cumprod cummax cummin cumlogsumexp", structural.cumulative),
    (
        "reduce reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor",
        structural.reduction,
    ),
    ("argmax argmin", structural.arg_reduction),
    (
        "bitcast_convert_type from_edtype to_edtype "
        "random_bits random_split random_unwrap random_wrap",
        structural.leading,
    ),
    ("iota iota_2x32_shape empty empty2 rng_bit_generator rng_uniform", structural.source),
    ("random_gamma", structural.random_gamma),
    ("loop_slice", structural.loop_slice),
    ("loop_stack", structural.loop_stack),
    (" ".join(sorted(elementwise.ELEMENTWISE)), elementwise.elementwise),
    (" ".join(sorted(elementwise.PAIRWISE)), elementwise.pairwise),
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {name: rule for names, rule in _GROUPS for name in names.split()}
)


def op_map(
    primitive: str,
    params: Mapping[str, Any],
    in_shapes: tuple[Shape, ...],
    out_shapes: tuple[Shape, ...],
) -> OpMap | None:
    """Returns the map of one equation, or None where the primitive has no rule (it is opaque)."""
    rule = RULES.get(primitive)
    return None if rule is None else rule(params, in_shapes, out_shapes)
