"""What training tells: one value per step, and one for them all."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One step that ran, the first being 1. `loss` is None where the step returns no scalar."""

    step: int
    loss: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Training:
    """What trained, where, and the steps so far.

    `fed_back` are the arguments that the step's results replace, whole or in part; `as_given`
    are the others, which stay so unless a batch renews them. `tokens` and `flops` are per step,
    over all devices; `peak_flops` is what one device can do in a second, None where it is not
    known.
    """

    plan: str | None
    mesh: Mapping[str, int] | None
    devices: int
    device_kind: str
    fed_back: tuple[str, ...]
    as_given: tuple[str, ...]
    loss_path: str | None
    flops: float
    tokens: int | None
    predicted_s: float | None
    peak_flops: float | None = None
    steps: tuple[TrainStep, ...] = ()

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(step.loss for step in self.steps if step.loss is not None)

    @property
    def step_s(self) -> float | None:
        """Returns the median time of the steps after the first, which compiles."""
        later = [step.seconds for step in self.steps[1:]]
        return statistics.median(later) if later else None

    @property
    def steps_per_s(self) -> float | None:
        return None if self.step_s is None else 1 / self.step_s

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.step_s is None or self.tokens is None else self.tokens / self.step_s

    @property
    def tflops_per_s(self) -> float | None:
        return None if self.step_s is None else self.flops / self.step_s / 1e12

    @property
    def mfu(self) -> float | None:
        """Returns the model's FLOPs as a share of what the devices could do meanwhile."""
        if self.step_s is None or self.peak_flops is None:
            return None
        return self.flops / self.step_s / (self.devices * self.peak_flops)

    def after(self, steps: Iterable[TrainStep]) -> Training:
        return replace(self, steps=tuple(steps))

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`."""
        return {
            "plan": self.plan,
            "mesh": None if self.mesh is None else dict(self.mesh),
            "devices": self.devices,
            "device_kind": self.device_kind,
            "fed_back": list(self.fed_back),
            "loss": self.loss_path,
            "losses": list(self.losses),
            "step_seconds": [step.seconds for step in self.steps],
            "median_step_seconds": self.step_s,
            "predicted_step_seconds": self.predicted_s,
            "flops_per_step": self.flops,
            "tokens_per_step": self.tokens,
            "steps_per_s": self.steps_per_s,
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_s": self.tflops_per_s,
            "mfu": self.mfu,
        }
