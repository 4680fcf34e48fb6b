"""A network is a mesh with a link per axis: what a collective takes along any of its axes.

Along one axis a collective takes what the link says. Along several it is composed, level by level;
after a level that gathers or scatters along an axis of n devices, the others move 1 / n:

    all-gather      (A, b)  =  all-gather A of bytes / n_b  +  all-gather b of bytes
    reduce-scatter  (A, b)  =  reduce-scatter b of bytes  +  reduce-scatter A of bytes / n_b
    all-reduce      (A, b)  =  reduce-scatter b  +  all-reduce A of bytes / n_b  +  all-gather b
    all-to-all      (A, b)  =  all-to-all A  +  all-to-all b, each of all bytes
    permute         (A, b)  =  the slower one: every pair lies along some axes

The order of the axes is the one that takes least, as libraries choose it: the slow axis moves the
smallest part. Axes of one and the same link are no levels: their devices are one group. Nor are
axes with a link that was measured along all of them together: libraries that know no levels (those
of CPUs) take what that link says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cfp.errors import CfpError
from cfp.links.link import PERMUTE, Link

TOGETHER = "+"  # between the axes in the name of a link that was measured along all of them


@dataclass(frozen=True, slots=True)
class Network:
    """The axes of a mesh, by name and size, with the link along each; `together` are those that
    were measured along several axes."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    links: tuple[Link, ...]
    together: Mapping[frozenset[str], Link] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """Returns the largest median error of its links, relative; None where none is known
        (`unknown_errors` has the links that do not say)."""
        known = [link.error.median for link in self._all() if link.error is not None]
        return max(known, default=None)

    @property
    def unknown_errors(self) -> tuple[str, ...]:
        """Returns the names of the links whose error nobody knows."""
        return tuple(dict.fromkeys(link.name for link in self._all() if link.error is None))

    def time_s(self, collective: str, axes: Sequence[str], size_bytes: float) -> float:
        """Returns the seconds of one collective along `axes`; `size_bytes` are of the tensor that a
        group of devices holds together, as in `Link.time_s`."""
        return _compose(collective, self._levels(axes), size_bytes)

    def filled_in(self, collective: str, axes: Sequence[str]) -> bool:
        """Returns whether the time along `axes` is composed or filled in by a model, rather than a
        row of a link's table."""
        levels = self._levels(axes)
        return len(levels) > 1 or any(not link.has(collective, n) for link, n in levels)

    def notes(self, device_kind: str) -> list[str]:
        """Says what one should know of times by these links, where devices of this kind stand in
        for those of the mesh."""
        others = {link.name: link.device for link in self.links if not link.is_between(device_kind)}
        notes = [
            f"The link {name} is between {device} devices, and {device_kind} stood in for them: "
            "computing is that of the one, communication that of the other."
            for name, device in others.items()
        ]
        notes += [
            f"The link {link.name} has no times of {size} devices (axis {axis}): they are filled "
            "in by a model of rings and trees."
            for axis, size, link in zip(self.axes, self.sizes, self.links, strict=True)
            if link.error is not None and self.filled_in("all-reduce", (axis,))
        ]
        if self.unknown_errors:
            names = ", ".join(self.unknown_errors)
            notes.append(
                f"Nobody knows the error of {names}: plans that seem to differ may be level."
            )
        return notes

    def show(self) -> str:
        """Returns the network as text, an axis a line."""
        lines = []
        for axis, size, link in zip(self.axes, self.sizes, self.links, strict=True):
            error = "error unknown" if link.error is None else f"error {link.error.median:.1%}"
            lines.append(f"{axis}: {size} devices over {link.name} ({error})")
        return "\n".join(lines)

    def _all(self) -> tuple[Link, ...]:
        return (*self.links, *self.together.values())

    def _levels(self, axes: Sequence[str]) -> tuple[tuple[Link, int], ...]:
        """Returns the links along the axes, each with the number of devices that it joins."""
        size_of = dict(zip(self.axes, self.sizes, strict=True))
        sizes: dict[int, int] = {}
        found: dict[int, Link] = {}
        for axis in axes:
            if axis not in self.axes:
                known = ", ".join(self.axes)
                raise CfpError(f"The mesh has no axis `{axis}`: its axes are {known}.")
        moved = frozenset(axis for axis in axes if size_of[axis] > 1)
        if moved in self.together:
            return ((self.together[moved], math.prod(size_of[axis] for axis in moved)),)
        for axis in axes:
            at = self.axes.index(axis)
            same = self.links.index(self.links[at])  # the first axis of an equal link
            found[same] = self.links[at]
            sizes[same] = sizes.get(same, 1) * self.sizes[at]
        return tuple((found[same], n) for same, n in sizes.items() if n > 1)


def _compose(collective: str, levels: tuple[tuple[Link, int], ...], size_bytes: float) -> float:
    """Returns the time over levels of links, in the best order (the module's formulas)."""
    if len(levels) < 2:
        return math.fsum(link.time_s(collective, n, size_bytes) for link, n in levels)
    if collective in ("collective-broadcast", PERMUTE):
        return max(link.time_s(collective, n, size_bytes) for link, n in levels)
    if collective in ("all-to-all", "ragged-all-to-all"):
        return math.fsum(link.time_s(collective, n, size_bytes) for link, n in levels)
    best = math.inf
    for i, (link, n) in enumerate(levels):
        around = [collective]
        if collective == "all-reduce":
            around = ["reduce-scatter", "all-gather"]
        own = math.fsum(link.time_s(kind, n, size_bytes) for kind in around)
        rest = (*levels[:i], *levels[i + 1 :])
        best = min(best, own + _compose(collective, rest, size_bytes / n))
    return best
