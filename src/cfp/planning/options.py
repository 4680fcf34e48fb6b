"""What one may ask of `cfp.plan`, in one value that Python's callers and the commands share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from cfp.devices import memory_bytes
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.links import Network, find_links
from cfp.links.file import Spec
from cfp.memory_size import parse_memory
from cfp.profile import Effort
from cfp.profile.explore.scope import Recompute
from cfp.profile.measure.budget import Budget

RECOMPUTE = tuple(one.value for one in Recompute)
AUDITED = 3  # predictions that are run as full steps: each takes a compilation of the whole step
MARGIN = 0.05  # of a device's memory, left to the runtime and to fragmentation


class Given(TypedDict, total=False):
    """The options of `cfp.plan` as one writes them; `Options` has their meaning and defaults."""

    memory_limit: int | str | None
    pins: Mapping[str, Any] | None
    budget: float | str | None
    audit: int | bool
    beside: Sequence[str]
    sequence: bool
    outer_batch: bool
    recompute: str
    exhaustive: bool
    cache_dir: str | os.PathLike[str] | None
    isolate: bool | None
    effort: Effort | None
    links: Spec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `cfp.plan`, checked; `cfp.plan` says what each means."""

    memory_limit: int | str | None = None
    pins: Mapping[str, Any] | None = field(default_factory=dict)
    budget: float | str | None = None
    audit: int | bool = AUDITED
    beside: Sequence[str] = ()
    sequence: bool = False
    outer_batch: bool = False
    recompute: str = Recompute.AUTO.value
    exhaustive: bool = False
    cache_dir: str | os.PathLike[str] | None = None
    isolate: bool | None = None
    effort: Effort | None = None
    links: Spec | None = None

    def __post_init__(self) -> None:
        if isinstance(self.beside, str):
            text = self.beside
            raise CfpError(f'`beside` is the text "{text}": give a list, as ["{text}"].')
        if self.recompute not in RECOMPUTE:
            known = ", ".join(f'"{word}"' for word in RECOMPUTE)
            raise CfpError(f'`recompute` is "{self.recompute}": give one of {known}.')
        Budget.of(self.budget_s)
        if self._given_bytes is not None and self._given_bytes <= 0:
            raise CfpError(
                f"`memory_limit` is {self.memory_limit}: give bytes per device, or '12GiB'."
            )

    @property
    def budget_s(self) -> float | None:
        return parse_duration(self.budget) if isinstance(self.budget, str) else self.budget

    @property
    def recomputing(self) -> Recompute:
        return Recompute(self.recompute)

    @property
    def audited(self) -> int:
        """Returns how many predictions are run as full steps."""
        return AUDITED if self.audit is True else int(self.audit)

    def limit_bytes(self, mesh: AnyMesh) -> int | None:
        """Returns what the user allows, else what the devices have less a margin, else no limit."""
        if self._given_bytes is not None:
            return self._given_bytes
        there = memory_bytes(mesh)
        return None if there is None else int(there * (1 - MARGIN))

    def network(self, mesh: AnyMesh) -> Network | None:
        """Returns the links along the axes of the mesh, where some are given."""
        if self.links is None:
            return None
        axes = {str(name): int(size) for name, size in mesh.shape.items()}
        return find_links(self.links, axes)

    @property
    def _given_bytes(self) -> int | None:
        limit = self.memory_limit
        if limit is None:
            return None
        return parse_memory(limit) if isinstance(limit, str) else int(limit)
