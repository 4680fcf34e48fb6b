"""Element-level maps say which elements of its operands each element of a result needs.

op_map(primitive, params, in_shapes, out_shapes)   the map of one equation (one table of rules)
OpMap.between, Map.then                             maps along a path
follow                                              where a split of a dim goes (Eq. 1)
"""

from cfp.affine.factors import Dims, Factors, Shape, shape_of
from cfp.affine.maps import Map, OpMap, follow, identity
from cfp.affine.table import RULES, Rule, op_map

__all__ = [
    "RULES",
    "Dims",
    "Factors",
    "Map",
    "OpMap",
    "Rule",
    "Shape",
    "follow",
    "identity",
    "op_map",
    "shape_of",
]
