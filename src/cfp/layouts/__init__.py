"""From one strategy per block to a layout for every tensor (paper, section 3.3)."""

from cfp.layouts.layout import Layout, Layouts, fits, local_shape, parts, to_spec, transfer, whole
from cfp.layouts.propagate import propagate

__all__ = [
    "Layout",
    "Layouts",
    "fits",
    "local_shape",
    "parts",
    "propagate",
    "to_spec",
    "transfer",
    "whole",
]
