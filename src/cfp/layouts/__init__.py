"""From one strategy per block to a layout for every tensor (paper, section 3.3)."""

from cfp.layouts.constrain import Constrain, sharding
from cfp.layouts.layout import (
    Entries,
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

__all__ = [
    "Constrain",
    "Entries",
    "Layout",
    "Layouts",
    "fits",
    "halfway",
    "local_shape",
    "parts",
    "propagate",
    "sharding",
    "to_spec",
    "transfer",
    "whole",
]
