"""What to measure of a step."""

from __future__ import annotations

from dataclasses import dataclass

from cfp.layouts.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`states` are the ways training state may lie. `lean` measures ZeRO-1 and FSDP of more options
    than the fastest, as happens where those would exceed `memory_limit_bytes`. With `exhaustive`
    every option is measured (of a segment that has more than `sample`, so many at random);
    otherwise those that may be best. `outer`, one candidate per block of the step, is what the
    mesh's first axis must split.
    """

    states: tuple[State, ...] = tuple(State)
    lean: bool = False
    exhaustive: bool = False
    sample: int | None = None
    memory_limit_bytes: float | None = None
    outer: tuple[int | None, ...] = ()
