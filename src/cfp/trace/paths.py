"""Names for the leaves of the step's arguments and results, as the user would write them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from cfp.errors import CfpError


def argument_names(step: Callable[..., Any], count: int) -> list[str]:
    """Returns the step's own parameter names; `args[i]` where it takes `*args` or has no
    signature."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # builtins and some C callables have no signature
        parameters = ()  # type: ignore[assignment]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        else:
            break
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(count)]


def leaf_paths(names: Sequence[str], args: Sequence[Any]) -> list[str]:
    """Returns one path per leaf of `args`; a leaf that is not an array is refused by its path."""
    paths: list[str] = []
    for name, arg in zip(names, args, strict=True):
        for key_path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            path = name + jax.tree_util.keystr(key_path)
            if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
                raise CfpError(
                    f"`{path}` is a {type(leaf).__name__}, not an array: "
                    "close over static values instead of passing them to the step."
                )
            paths.append(path)
    return paths
