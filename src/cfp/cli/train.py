"""`cfp train`: run a step over and over, with a plan or without."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import jax
import numpy as np
from rich.console import Console

from cfp import models
from cfp.cli.options import (
    json_option,
    load_plan,
    mesh_of,
    model_options,
    named_target,
    platform_option,
    process_options,
)
from cfp.cli.targets import load_target, model_config
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.cluster.watch import watched
from cfp.devices import make_mesh
from cfp.errors import CfpError
from cfp.plan import Plan
from cfp.plan.file import read_document
from cfp.report.training import TrainingProgress, show_training
from cfp.training import Training, TrainLoop, TrainStep, prepare

EAGER_BYTES = 2**30  # a larger state is made where it lies, not on one device and then split


@click.command()
@click.argument("target", required=False)
@click.option(
    "--plan",
    "path",
    metavar="PLAN",
    help="The plan file to train with. [default: unsharded, on one device]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="How many steps to train.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Seed of a built-in model's parameters, batches and dropout.",
)
@platform_option
@json_option
@process_options
@model_options
def train(
    target: str | None,
    path: str | None,
    steps: int,
    seed: int,
    platform: str | None,
    as_json: bool,
    membership: Membership,
    **options: Any,
) -> None:
    """Train a step with a plan, and see loss and throughput as it runs.

    TARGET is bert, gpt, moe, llama, or your own as module:function, where the function returns
    (step, args). With --plan it may be left out: it is then what the plan was made for.

    A built-in model gets a new synthetic batch, and a new dropout key, every step. What your
    own step returns is fed back into its arguments: a result, or a part of it, replaces the
    argument, or the part, of the same structure, shapes and dtypes (a lone array only where it is
    a parameter that the step updates). The other arguments stay as given, the batch too. The loss
    is the result called `loss`, or else the first floating-point scalar.

    A step's time is from its call until its last result is there. TFLOP/s are the model's over all
    devices: two per multiply-add of the matrix products and convolutions of the forward and the
    backward pass; not what `jax.checkpoint` computes again, nor the optimizer, nor elementwise
    work. The first step compiles and counts in no rate.

    \b
        cfp train gpt --steps 50
        cfp template megatron gpt --mesh 4 --platform cpu --out plan.json
        cfp train --plan plan.json --steps 50 --platform cpu
        cfp train my_project.train:make_step --plan plan.json --steps 200 --json
    """
    devices = 1
    if path is not None:
        document = read_document(path)
        devices = math.prod(document.mesh("mesh").values())
        target, options = named_target(target, options, path, document)
    if target is None:
        raise click.UsageError(
            "Name a TARGET, as gpt, or a plan that was made for one with --plan."
        )
    task = _Task(target, path, steps, seed, platform, options)
    with membership.joined(devices, platform, stays=True) as team:
        trained = task.run(team)
        shown = team is None or team.leads
    if as_json and shown:
        click.echo(json.dumps({"target": target, **trained.to_json()}, indent=1))
    elif shown:
        show_training(trained.training, Console())
    if trained.stopped is not None:
        raise trained.stopped


@dataclass(frozen=True, slots=True)
class _Trained:
    """What came of training. `renewed` are the arguments that every step got anew; `stopped` says
    where the user interrupted."""

    training: Training
    renewed: tuple[str, ...]
    stopped: CfpError | None

    def to_json(self) -> dict[str, Any]:
        more = {"renewed": self.renewed, "interrupted": self.stopped is not None}
        return {**self.training.to_json(), **more}


@dataclass(frozen=True, slots=True)
class _Task:
    """What is trained, with which plan file, and how often; `options` are the model's."""

    target: str
    path: str | None
    steps: int
    seed: int
    platform: str | None
    options: dict[str, Any]

    def run(self, team: Team | None) -> _Trained:
        """Trains in this process, as one of the team where there is one."""
        if team is not None and self.path is None:
            raise CfpError("Several processes train with a plan: give one with --plan.")
        if team is not None:
            team.advice = "Start all processes again."
        messages = Console(stderr=True, quiet=not (team is None or team.leads))
        stopped: CfpError | None = None
        with watched(team, _end) as farewell:
            _doing(team, "preparing to train")
            with messages.status(f"Preparing {self.target} ..."):
                loop, trained, renewed = self.start()
            _doing(team, "training step 1")
            with TrainingProgress(messages, loop.training, self.steps, renewed) as progress:
                done = _take_steps(trained, progress, team)
            if len(done) < self.steps:
                stopped = CfpError(f"Interrupted after {len(done)} of {self.steps} steps.")
                farewell.hurry(str(stopped))  # the others may be a step ahead, and wait for us
        return _Trained(loop.training.after(done), renewed, stopped)

    def start(self) -> tuple[TrainLoop, Iterator[TrainStep], tuple[str, ...]]:
        """Returns the loop, its steps to come, and the arguments that every step gets anew.

        No one but the steps then holds the first arguments, so they are freed once placed.
        """
        plan: Plan | None = None
        if self.path is None:
            mesh = make_mesh((1,), self.platform)
        else:
            mesh = mesh_of(read_document(self.path).mesh("mesh"), self.platform)
            plan = load_plan(self.path, mesh)
        ready = functools.partial(prepare, plan=plan, device=mesh.devices.flat[0])
        if self.target not in models.NAMES:
            step, args = load_target(self.target, self.options)
            loop = ready(step, *args)
            return loop, loop.run(args, steps=self.steps), ()
        config = model_config(self.target, self.options)
        step, (shapes, *rest) = models.make_step(config, abstract=True)
        loop = ready(step, shapes, *rest, tokens=config.batch * config.seq)
        state = _initial_state(config, self.seed, shapes, loop.shardings(0))
        batches = _batches(config, self.seed)
        renewed = ("batch", "key") if config.dropout else ("batch",)
        return loop, loop.run((state, *rest), steps=self.steps, batches=batches), renewed


def _take_steps(
    trained: Iterator[TrainStep], progress: TrainingProgress, team: Team | None
) -> list[TrainStep]:
    """Returns the steps that were taken: all of them, unless the user interrupts."""
    done: list[TrainStep] = []
    try:
        for one in trained:
            done.append(one)
            progress.stepped(one)
            _doing(team, f"training step {one.step + 1}")
    except KeyboardInterrupt:
        pass  # the caller says how many there were
    return done


def _doing(team: Team | None, what: str) -> None:
    if team is not None:
        team.doing = what


def _end(reason: str) -> None:
    """Ends this process at once because another is gone: the step under way may never end."""
    os.write(2, f"cfp: {reason}\n".encode())
    os._exit(1)


def _initial_state(config: models.Config, seed: int, shapes: models.TrainState, where: Any) -> Any:
    init = functools.partial(models.init_state, config, seed)
    leaves = jax.tree.leaves(shapes)
    size_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return init() if size_bytes <= EAGER_BYTES else jax.jit(init, out_shardings=where)()


def _batches(config: models.Config, seed: int) -> Iterator[dict[str, Any]]:
    """Yields a batch of its own for every step, the same for every plan."""
    step = 0
    while True:
        drawn = np.random.SeedSequence([seed, step]).generate_state(2) >> 1
        batch: dict[str, Any] = {"batch": models.synthetic_batch(config, int(drawn[0]))}
        yield {**batch, "key": jax.random.key(int(drawn[1]))} if config.dropout else batch
        step += 1
