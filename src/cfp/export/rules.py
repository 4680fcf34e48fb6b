r"""Shardings as rules: pairs of a regular expression and a `PartitionSpec`, first match wins.

A tensor is named by its path with slashes, `params/layers/0/up`, which is what
`jax.tree_util.keystr(path, simple=True, separator="/")` writes. Numbers become `\d+`, so that one
rule speaks of all layers. Each tensor that is split gets the shortest end of its path that no
tensor of another sharding shares:

    rule(t) = min { end e of path(t) : all tensors whose path ends in e lie like t }

or its whole path where there is none. Tensors that are whole on every device fall through to the
last rule. The rules are applied to every tensor before they are returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from cfp.errors import CfpError

Rules = tuple[tuple[str, PartitionSpec], ...]

_WHOLE: Any = PartitionSpec()  # type: ignore[no-untyped-call]
_NUMBER = re.compile(r"\d+")
# one step of a path as JAX writes it: ['key'], ["it's"], [0], [<flat index 0>], .field
_STEP = re.compile(
    r"\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]"
    r"|\[<flat index (\d+)>\]|\[([^\]]*)\]|\.(\w+)"
)


def slash_path(path: str) -> str:
    """Returns a path as JAX's plain form writes it.

    >>> slash_path("state.params['layers'][0]['up']")
    'state/params/layers/0/up'
    """
    start = re.match(r"args\[\d+\]|\w+", path)
    if start is None:
        return path
    steps = [start[0]]
    at = start.end()
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return path
        steps.append(next(group for group in found.groups() if group is not None))
        at = found.end()
    return "/".join(steps)


def find_rules(specs: Mapping[str, PartitionSpec]) -> Rules:
    """Returns rules that give every path its sharding; paths have slashes."""
    lie: dict[tuple[str, ...], set[PartitionSpec]] = {}
    for path, spec in specs.items():
        for end in _ends(path):
            lie.setdefault(end, set()).add(spec)
    rules: dict[str, PartitionSpec] = {}
    for path, spec in specs.items():
        if spec != _WHOLE:
            alike = [end for end in _ends(path) if len(lie[end]) == 1]
            pattern = f"(^|/){'/'.join(alike[0])}$" if alike else f"^{re.escape(path)}$"
            rules[pattern] = spec
    found = (*rules.items(), (".*", _WHOLE))
    _check(found, specs)
    return found


def match_rules(rules: Sequence[tuple[str, PartitionSpec]], path: str) -> PartitionSpec:
    """Returns the sharding that the first rule that matches gives a path."""
    for pattern, spec in rules:
        if re.search(pattern, path):
            return spec
    raise CfpError(f"No rule matches `{path}`: add one for it, or (`.*`, PartitionSpec()) last.")


def _ends(path: str) -> list[tuple[str, ...]]:
    """Returns the ends of a path as patterns, the shortest first."""
    steps = [r"\d+" if _NUMBER.fullmatch(step) else re.escape(step) for step in path.split("/")]
    return [tuple(steps[-count:]) for count in range(1, len(steps) + 1)]


def _check(rules: Rules, specs: Mapping[str, PartitionSpec]) -> None:
    for path, spec in specs.items():
        found = match_rules(rules, path)
        assert found == spec, f"the rules give {path} the sharding {found}, not {spec}"
