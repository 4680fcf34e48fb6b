"""A plan to verify, and what came of it: plain data. Imports no jax, so that a worker may choose
its devices first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Case:
    """One plan of one step. `plan` is a template's name, or "random-3"."""

    step: str
    mesh: str
    plan: str
    seed: int = 0  # of random plans

    def __str__(self) -> str:
        return f"{self.step}/{self.mesh}/{self.plan}"

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.mesh.split("x"))

    @property
    def is_random(self) -> bool:
        return self.plan.startswith(RANDOM)

    @property
    def by_segment(self) -> bool:
        """Returns whether a random plan is made as the planner makes one: every other is."""
        return self.is_random and int(self.plan.split("-")[1]) % 2 == 1

    @property
    def round_trip(self) -> bool:
        """Returns whether the plan is also saved, loaded and compared: one random plan in five."""
        return int(self.plan.split("-")[1]) % 5 == 0 if self.is_random else self.mesh == "2x2"


@dataclass(frozen=True, slots=True)
class Result:
    """`status` is ok, refused (a template that does not fit the step) or failed."""

    case: Case
    status: str
    message: str = ""
    ratio: float | None = None  # worst error, as a share of what rounding explains
    output: str = ""  # where that is
    round_trip: bool | None = None
    detail: str = ""  # of a failure: the end of the traceback, the strategies
    time_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.case), **asdict(self), "case": str(self.case)}

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Result:
        case = Case(*(plain.pop(name) for name in ("step", "mesh", "plan", "seed")))
        return Result(**{**plain, "case": case})
