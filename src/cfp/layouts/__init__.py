"""Layouts follow from one strategy per block: this room finds one for every tensor (paper, section
3.3)."""

from cfp.layouts.constrain import AnyMesh, Constrain, auto_mesh, real_mesh, sharding
from cfp.layouts.layout import (
    Entry,
    Layout,
    Layouts,
    fits,
    halfway,
    local_shape,
    parts,
    to_spec,
    transfer,
    whole,
)
from cfp.layouts.propagate import propagate
from cfp.layouts.substitute import Placed, substitute

__all__ = [
    "AnyMesh",
    "Constrain",
    "Entry",
    "Layout",
    "Layouts",
    "Placed",
    "auto_mesh",
    "fits",
    "halfway",
    "local_shape",
    "parts",
    "propagate",
    "real_mesh",
    "sharding",
    "substitute",
    "to_spec",
    "transfer",
    "whole",
]
