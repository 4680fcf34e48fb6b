"""Arguments placed on a mesh as a plan wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from cfp.errors import CfpError
from cfp.layouts import AnyMesh, sharding
from cfp.plan.tensor import PlannedTensor
from cfp.trace.paths import leaf_paths
from cfp.trace.runtime import without_mesh


def place_arrays(
    mesh: AnyMesh, planned: Sequence[PlannedTensor], names: Sequence[str], args: Sequence[Any]
) -> tuple[Any, ...]:
    """Copies pytrees of arrays, the arguments of these names, to where the plan wants them."""
    tensors = {tensor.path: tensor for tensor in planned}
    paths = leaf_paths(names, args)
    extra = next((path for path in paths if path not in tensors), None)
    if extra is not None:
        raise CfpError(
            f"The plan has no argument `{extra}`: leave it out, or plan the step again with it."
        )
    for name in names:
        missing = sorted(parts_of(name, tensors).difference(paths))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CfpError(
                f"`{missing[0]}`{more} is missing: the plan is for `{name}` with it. Pass the "
                "whole argument, or plan the step again without it."
            )
    leaves, tree = jax.tree.flatten(tuple(args))
    placed: list[Any] = []
    for path, leaf in zip(paths, leaves, strict=True):
        tensor = tensors[path]
        if tuple(jax.numpy.shape(leaf)) != tensor.shape:
            raise CfpError(
                f"`{path}` has shape {list(jax.numpy.shape(leaf))}; the plan is for "
                f"{list(tensor.shape)}. Plan the step again for these arguments."
            )
        with without_mesh():
            placed.append(_copy(leaf, sharding(mesh, tensor.layout)))
    return tuple(jax.tree.unflatten(tree, placed))


def parts_of(name: str, paths: Iterable[str]) -> set[str]:
    """Returns the paths that are in the argument of that name."""
    inside = (f"{name}[", f"{name}.")
    return {path for path in paths if path == name or path.startswith(inside)}


def _copy(leaf: Any, where: Sharding) -> Any:
    """Returns a copy of an array in that sharding, or a shape that has it."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        shape: Any = jax.ShapeDtypeStruct
        return shape(leaf.shape, leaf.dtype, sharding=where)
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        leaf = leaf.copy()  # a device that keeps its part would share it, even without aliasing
    return jax.device_put(leaf, where, may_alias=False)
