"""Tells how a step is called (`cfp.trace.calling`), from the step and its arguments.

Flax and Equinox are looked for among the modules that are imported already: whoever passes their
objects has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax

from cfp.trace.calling import (
    PLAIN,
    Calling,
    LiveObjects,
    StaticLeaves,
    is_array,
    is_data,
    path_text,
)


def calling_of(step: Callable[..., Any], names: Sequence[str], args: Sequence[Any]) -> Calling:
    """Returns how `step` is called with `args`."""
    args = tuple(args)
    live = _live_objects(args)
    if live is not None:
        return live
    equinox: Any = sys.modules.get("equinox")
    if equinox is not None:
        filtered = isinstance(step, type(equinox.filter_jit(lambda: None)))
        static = [filtered or _contains(arg, equinox.Module) for arg in args]
        if any(static):
            return _static_leaves(
                names, args, lambda i, _, leaf: is_array(leaf) if static[i] else is_data(leaf)
            )
    return PLAIN


def placing_of(names: Sequence[str], args: Sequence[Any], planned: Container[str]) -> Calling:
    """Returns how arguments are taken apart for a plan whose arrays have the paths `planned`. The
    step is not needed: with Equinox, what the plan does not know is static unless it is an
    array."""
    args = tuple(args)
    live = _live_objects(args)
    if live is not None:
        return live
    if "equinox" not in sys.modules:
        return PLAIN
    return _static_leaves(names, args, lambda _, path, leaf: is_array(leaf) or path in planned)


def _live_objects(args: tuple[Any, ...]) -> Calling | None:
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return None
    live = tuple(i for i, arg in enumerate(args) if _contains(arg, nnx.Pytree))
    if not live:
        return None
    return LiveObjects(nnx=nnx, live=live, graphdef=nnx.graphdef(tuple(args[i] for i in live)))


def _static_leaves(
    names: Sequence[str], args: tuple[Any, ...], varies: Callable[[int, str, Any], bool]
) -> Calling:
    """Returns the calling in which a leaf, told by its argument's number, its path and itself, is
    data or static."""
    paths: list[str] = []
    statics: list[Any] = []
    for i, (name, arg) in enumerate(zip(names, args, strict=True)):
        for key, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            path = name + path_text(key)
            paths.append(path)
            statics.append(None if varies(i, path, leaf) else leaf)
    return StaticLeaves(paths=tuple(paths), tree=jax.tree.structure(args), statics=tuple(statics))


def _contains(tree: Any, kind: type) -> bool:
    found = jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, kind))
    return any(isinstance(part, kind) for part in found)
