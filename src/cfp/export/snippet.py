"""A plan's shardings as Python that needs JAX alone: a table by path, and how to apply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from cfp.export.rules import Rules

_SNIPPET = '''\
"""{title}

It needs JAX alone:

    mesh = make_mesh()
    step = jax.jit(
        step,
        in_shardings=in_shardings(mesh, *args),
        out_shardings=out_shardings(mesh, jax.eval_shape(step, *args)),
    )
    result = step(*jax.device_put(args, in_shardings(mesh, *args)))
"""
{inside}
import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = {axes}
NAMES = {names}  # of the arguments
ARGUMENTS = {arguments}
RESULTS = {results}


def make_mesh(devices=None):
    """Returns the mesh that the plan is for, of the first devices."""
    devices = jax.devices() if devices is None else devices
    count = math.prod(AXES.values())
    return Mesh(np.array(devices[:count]).reshape(tuple(AXES.values())), tuple(AXES))


def shardings(mesh, specs, name, tree):
    """Returns a sharding for every array of a tree, by its path."""

    def sharding(path, _):
        return NamedSharding(mesh, specs[name + jax.tree_util.keystr(path)])

    return jax.tree_util.tree_map_with_path(sharding, tree)


def in_shardings(mesh, *args):
    """Returns the shardings of the step's arguments, for `jax.jit` and `jax.device_put`."""
    named = zip(NAMES, args, strict=True)
    return tuple(shardings(mesh, ARGUMENTS, name, arg) for name, arg in named)


def out_shardings(mesh, result):
    """Returns the shardings of what the step returns; `result` may be shapes alone."""
    return shardings(mesh, RESULTS, "result", result)
'''

_RULES = '''\
"""{title}

Paths are those of `jax.tree_util.keystr(path, simple=True, separator="/")`{within}.
"""

import re

from jax.sharding import PartitionSpec as P

RULES = {rules}


def spec_of(path):
    """Returns the sharding of a path: the first rule that matches counts."""
    return next(spec for pattern, spec in RULES if re.search(pattern, path))
'''


def make_snippet(
    title: str,
    axes: Mapping[str, int],
    names: Sequence[str],
    arguments: Mapping[str, PartitionSpec],
    results: Mapping[str, PartitionSpec],
    inside: str = "",
) -> str:
    """Returns a Python module with a plan's shardings; `inside` is a comment on what else it does,
    inside the step."""
    return _SNIPPET.format(
        title=title,
        axes=repr(dict(axes)),
        names=repr(tuple(names)),
        arguments=_table(arguments),
        results=_table(results),
        inside=f"\n{inside}" if inside else "",
    )


def rules_text(title: str, rules: Rules, argument: str | None = None) -> str:
    """Returns a Python module with rules; they may be of the paths within one argument."""
    lines = "".join(f"    (r{_quoted(pattern)}, {_spec(spec)}),\n" for pattern, spec in rules)
    within = f" within `{argument}`" if argument else ", after the argument's name"
    return _RULES.format(title=title, within=within, rules=f"[\n{lines}]")


def _table(specs: Mapping[str, PartitionSpec]) -> str:
    lines = "".join(f"    {path!r}: {_spec(spec)},\n" for path, spec in specs.items())
    return f"{{\n{lines}}}"


def _spec(spec: PartitionSpec) -> str:
    entries: Any = tuple(spec)
    return f"P({', '.join(map(repr, entries))})"


def _quoted(pattern: str) -> str:
    """Returns a pattern as the text of a raw string."""
    return f'"{pattern}"' if '"' not in pattern else f"'{pattern}'"
