"""Training as it runs, on stderr, and what came of it.

A terminal has a live line. There and elsewhere a line stays after every few steps, about 20 in all.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection
from types import TracebackType

from rich.console import Console
from rich.status import Status

from cfp.report.text import line, time_text
from cfp.training import Training, TrainStep

MOST_LINES = 20  # that stay on the screen: a training fits one


class TrainingProgress:
    """Progress of a training: `with TrainingProgress(console, loop.training, steps) as progress:`,
    then `stepped`.

    `renewed` are the arguments that every step gets anew.
    """

    def __init__(
        self, console: Console, training: Training, steps: int, renewed: Collection[str] = ()
    ) -> None:
        self.console = console
        self.training = training
        self.steps = steps
        self.renewed = renewed
        self._every = line_every(steps)
        self._since: list[float] = []  # seconds of the steps since the last line
        self._status = Status("compiling", console=console) if console.is_terminal else None

    def __enter__(self) -> TrainingProgress:
        self._print(start_text(self.training, self.renewed))
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def stepped(self, done: TrainStep) -> None:
        self._since.append(done.seconds)
        text = step_text(self.training, done, self.steps, statistics.median(self._since))
        if self._status is not None:
            self._status.update(line(text))
        if done.step % self._every == 0 or done.step in (1, self.steps):  # the first compiles
            self._since.clear()
            self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(line(text), soft_wrap=True)


def line_every(steps: int) -> int:
    """Returns the first of 1, 2, 5, 10, 20, 50 ... that makes no more than `MOST_LINES`."""
    sizes = (int(digit * 10**power) for power in itertools.count() for digit in (1, 2, 5))
    return next(every for every in sizes if steps <= MOST_LINES * every)


def start_text(training: Training, renewed: Collection[str]) -> str:
    """Returns what trains where, and what becomes of the arguments."""
    kept = [name for name in training.as_given if name not in renewed]
    fates = (
        (training.fed_back, "from the step before"),
        (renewed, "new every step"),
        (kept, "as given"),
    )
    each = "; ".join(f"{_names(names)} {fate}" for names, fate in fates if names)
    return f"Training {where_text(training)}: {each}."


def where_text(training: Training) -> str:
    count = f"{training.devices} {training.device_kind} device{'s' * (training.devices > 1)}"
    if training.plan is None or training.mesh is None:
        return f"unsharded on {count}"
    axes = ", ".join(f"{name}={size}" for name, size in training.mesh.items())
    return f"with {training.plan} on {axes} ({count})"


def step_text(training: Training, done: TrainStep, steps: int, seconds: float) -> str:
    """Returns the line about one step; `seconds` is the median time of the latest steps."""
    loss = "" if done.loss is None else f"  loss {loss_text(done.loss)}"
    count = f"step {done.step:{len(str(steps))}}/{steps}{loss}"
    if done.step == 1:
        return f"{count}  {time_text(done.seconds)}, compiling included"
    return f"{count}  {time_text(seconds)}  {'  '.join(_rates(training, seconds))}"


def loss_text(loss: float) -> str:
    return f"{loss:.4f}" if abs(loss) >= 0.01 else f"{loss:.3g}"


def show_training(training: Training, console: Console) -> None:
    """Prints the summary of a training."""
    for text in summary_lines(training):
        console.print(line(text), soft_wrap=True)


def summary_lines(training: Training) -> list[str]:
    steps, seconds = training.steps, training.step_s
    if not steps:
        return ["No step was done."]
    lines = [f"Trained {len(steps)} step{'s' * (len(steps) > 1)} {where_text(training)}."]
    losses = training.losses
    if losses:
        first_loss, last_loss = loss_text(losses[0]), loss_text(losses[-1])
        lines.append(f"  loss        {first_loss} at first, {last_loss} at last")
    else:
        lines.append("  loss        not known: the step returns no floating-point scalar")
    first = f"the first, which compiles, took {time_text(steps[0].seconds)}"
    if seconds is None:
        return [*lines, f"  step time   not known: {first}"]
    lines.append(f"  step time   {time_text(seconds)}, median of {len(steps) - 1}; {first}")
    lines.append(f"  throughput  {', '.join(_rates(training, seconds))}, all devices together")
    if training.predicted_s is not None:
        ratio = seconds / training.predicted_s
        lines.append(
            f"  predicted   {time_text(training.predicted_s)}: measured is {ratio:.2f} times that"
        )
    return lines


def _rates(training: Training, seconds: float) -> list[str]:
    steps = f"{1 / seconds:,.2f} steps/s"  # used where the tokens of a step are not known
    tokens = None if training.tokens is None else f"{training.tokens / seconds:,.0f} tokens/s"
    rates = [tokens or steps, f"{training.flops / seconds / 1e12:.3g} TFLOP/s"]
    if training.peak_flops is not None:
        share = training.flops / seconds / (training.devices * training.peak_flops)
        rates.append(f"MFU {share:.1%}")
    return rates


def _names(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
