"""Pins: arguments whose sharding the user fixes by path pattern.

A pattern is matched against an argument's path, in which `state.params['layers'][0]['qkv']` may
also be written `state.params.layers.0.qkv`; `*` stands for anything.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Layout, parts
from cfp.trace import Graph

_KEY = re.compile(r"""\[['"]?([^\]'"]*)['"]?\]""")


def dotted(path: str) -> str:
    """Returns `state.params['layers'][0]` as `state.params.layers.0`."""
    return _KEY.sub(r".\1", path)


def resolve_pins(graph: Graph, mesh: AnyMesh, pins: Mapping[str, Any]) -> dict[int, Layout]:
    """Returns a dict: position of the argument -> the layout that a pin gives it."""
    held: dict[int, Layout] = {}
    said: dict[int, str] = {}
    paths = [dotted(path) for path in graph.input_paths]
    for pattern, spec in pins.items():
        wanted = dotted(pattern)
        matched = [i for i, path in enumerate(paths) if fnmatch.fnmatchcase(path, wanted)]
        if not matched:
            near = difflib.get_close_matches(wanted, paths, n=1, cutoff=0.0)
            hint = f" Did you mean `{graph.input_paths[paths.index(near[0])]}`?" if near else ""
            raise CfpError(f"The pin `{pattern}` matches no argument of the step.{hint}")
        for i in matched:
            path, shape = graph.input_paths[i], graph.values[graph.inputs[i]].shape
            layout = layout_of(spec, path, shape, mesh, f"The pin `{pattern}`")
            if held.get(i, layout) != layout:
                raise CfpError(
                    f"The pins `{said[i]}` and `{pattern}` contradict each other: both match "
                    f"`{path}`, and they give {pins[said[i]]} and {spec}."
                )
            held[i] = layout
            said[i] = pattern
    return held


def layout_of(spec: Any, path: str, shape: Sequence[int], mesh: AnyMesh, who: str) -> Layout:
    """Returns a PartitionSpec as a layout, checked against a tensor and a mesh."""
    if isinstance(spec, NamedSharding):
        spec = spec.spec
    if spec is None:
        spec = PartitionSpec()  # type: ignore[no-untyped-call]
    if not isinstance(spec, (PartitionSpec, tuple, list)):
        raise CfpError(f"{who} is {spec!r}: give a PartitionSpec, as P(None, 'model').")
    names = list(mesh.axis_names)
    layout: list[int | None] = [None] * len(names)
    if len(spec) > len(shape):
        raise CfpError(f"{who} names {len(spec)} dims; `{path}` has {len(shape)}.")
    for dim, entry in enumerate(spec):
        axes = [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
        for axis in axes:
            if axis not in names:
                raise CfpError(
                    f"{who} names the mesh axis {axis!r}; the mesh has {', '.join(names)}."
                )
            if layout[names.index(axis)] is not None:
                raise CfpError(f"{who} uses the mesh axis {axis!r} twice.")
            layout[names.index(axis)] = dim
        if axes != sorted(axes, key=names.index):
            ordered = tuple(sorted(axes, key=names.index))
            raise CfpError(
                f"{who} splits dim {dim} of `{path}` over {tuple(axes)}: write {ordered}, the "
                "order of the mesh."
            )
    counts = parts(tuple(layout), len(shape), mesh.axis_sizes)
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if size % count:
            raise CfpError(
                f"{who} splits dim {dim} of `{path}` into {count} parts; its size {size} "
                "does not divide."
            )
    return tuple(layout)
