"""What to measure of a step."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cfp.layouts.state import State


class Recompute(enum.Enum):
    """Who decides what is computed again in the backward pass: the plan, segment by segment; the
    step, by `jax.checkpoint`; or nobody, so that nothing is."""

    AUTO = "auto"
    AS_WRITTEN = "as written"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`states` are the ways training state may lie. `lean` measures ZeRO-1 and FSDP of more options
    than the fastest, as happens where those would exceed `memory_limit_bytes`. With `exhaustive`
    every option is measured (of a segment that has more than `sample`, so many at random);
    otherwise those that may be best. `outer`, one candidate per block of the step, is what the
    mesh's first axis must split. `recompute` says what may be computed again.
    """

    states: tuple[State, ...] = tuple(State)
    lean: bool = False
    exhaustive: bool = False
    sample: int | None = None
    memory_limit_bytes: float | None = None
    outer: tuple[int | None, ...] = ()
    recompute: Recompute = Recompute.AUTO
