"""Options that several commands take, and the values that they name."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console

import cfp
from cfp import templates
from cfp.cli.targets import choose_target
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.cluster.launch import VARIABLES
from cfp.devices import MOST_DEVICES, absent_mesh, make_mesh
from cfp.duration import UNITS_S as DURATION_UNITS_S
from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.memory_size import UNITS as MEMORY_UNITS
from cfp.plan.fields import Fields
from cfp.plan.target import target_of
from cfp.profile.measure.store import StoreWarning
from cfp.report import TerminalProgress

_MESH = re.compile(r"0*[1-9][0-9]{0,8}([xX]0*[1-9][0-9]{0,8})*")  # no axis of a billion
_AMOUNTS = {"--memory-limit": tuple(MEMORY_UNITS), "--budget": tuple(DURATION_UNITS_S)}
Decorator = Callable[[Callable[..., None]], Callable[..., None]]
SEQUENCE_HELP = "Let sequence dims be split too, where the batch does not divide by the mesh."


def parse_mesh(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Returns (4,) for `4` and (2, 4) for `2x4`."""
    if text is None:
        return None
    if _MESH.fullmatch(text) is None:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise click.BadParameter(f"{shown!r} is not a mesh: write 4 or 2x4.")
    return tuple(int(size) for size in re.split("[xX]", text))


def parse_counts(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    """Returns (8,) for `8` and (4, 8, 16) for `4,8,16`, each of them once."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise click.BadParameter(f"{text[:40]!r} is no number of devices: write 8 or 4,8,16.")
    counts = tuple(dict.fromkeys(map(int, parts)))
    if not all(1 <= count <= MOST_DEVICES for count in counts):
        raise click.BadParameter(f"{text[:40]!r} is not in the range 1 to {MOST_DEVICES}.")
    return counts


class Command(click.Command):
    """A command that knows why an amount was followed by a word that it has no place for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does, and refuses `--memory-limit 12 GB`: click would only find `GB`
        odd."""
        for option, number, unit in zip(args, args[1:], args[2:], strict=False):
            amount = re.fullmatch(r"[0-9.]+", number) and unit.lower() in _AMOUNTS.get(option, ())
            if amount:
                raise click.UsageError(
                    f"{option} {number} {unit} is two words: write {option} {number}{unit}.", ctx
                )
        return super().parse_args(ctx, args)


def parse_pins(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the pins: `PATTERN=None,y` splits dim 1 over y, `PATTERN=x+y` splits dim 0 over
    both."""
    pins: dict[str, Any] = {}
    for text in texts:
        pattern, equals, spec = text.rpartition("=")
        entries = [entry.strip() for entry in spec.split(",")]
        if not (equals and pattern and all(entries)):
            raise click.BadParameter(f"{text!r} is not a pin: write 'PATTERN=None,y'.")
        if pattern in pins:
            raise click.BadParameter(f"{pattern!r} is pinned twice.")
        dims = [None if entry == "None" else tuple(entry.split("+")) for entry in entries]
        pins[pattern] = PartitionSpec(*dims)  # type: ignore[no-untyped-call]
    return pins


def parse_names(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the names in `megatron,fsdp`, from one option or several; `all` stands for every
    template."""
    names = [name.strip() for text in texts for name in text.split(",")]
    found = [one for name in names for one in (templates.__all__ if name == "all" else [name])]
    return tuple(dict.fromkeys(name for name in found if name))


def parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Returns a callback for an option that `parse` reads; what it refuses is a usage error."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except CfpError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def gathered(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Returns a decorator that adds options to a command, which gets their values as one argument
    `name`: what `make` makes of them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(*args: Any, **values: Any) -> None:
            made = make(**{one: values.pop(one) for one in taken})
            command(*args, **{name: made}, **values)

        before = len(getattr(wrapped, "__click_params__", ()))
        for option in reversed(options):
            option(wrapped)
        added: list[click.Parameter] = wrapped.__click_params__[before:]  # type: ignore[attr-defined]
        taken = [str(parameter.name) for parameter in added]
        return wrapped

    return decorate


pin_option = click.option(
    "--pin",
    "pins",
    multiple=True,
    callback=parse_pins,
    metavar="PATTERN=SPEC",
    help="Fix the sharding of arguments, by path: 'batch.*=x', 'params.*.qkv=None,y'. Repeatable.",
)
mesh_option = click.option("--mesh", callback=parse_mesh, required=True, help="The mesh: 4 or 2x4.")
platform_option = click.option(
    "--platform",
    type=click.Choice(["cpu", "gpu", "tpu"]),
    help="cpu makes as many virtual devices as the mesh needs. [default: the machine's devices]",
)


links_option = click.option(
    "--links",
    help="Plan for a mesh that is not there: the link along each of its axes, such as "
    "ib_400g,h200_nvlink, or a file. `cfp links` lists them.",
)
cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(),
    help="Where measurements are kept. [default: $XDG_CACHE_HOME/cfp or ~/.cache/cfp]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the size and the overrides of the built-in models."""
    options: list[Decorator] = [
        click.option("--size", help="tiny (default), small, or the paper's: 760m, 2.6b, 7b ..."),
        *(
            click.option(f"--{name}", type=int, help=f"Override the size's {meaning}.")
            for name, meaning in (
                ("layers", "number of layers"),
                ("hidden", "hidden size (heads and ffn follow)"),
                ("heads", "attention heads"),
                ("seq", "sequence length"),
                ("batch", "batch size"),
                ("vocab", "vocabulary"),
                ("experts", "experts per MoE layer"),
            )
        ),
        click.option("--dtype", help="float32 or bfloat16."),
        click.option("--scan", is_flag=True, help="Put the layers under lax.scan."),
        click.option("--checkpoint", is_flag=True, help="Recompute each layer (jax.checkpoint)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def any_mesh(
    shape: tuple[int, ...], platform: str | None, links: Any, names: Sequence[str] | None = None
) -> AnyMesh:
    """Returns a mesh of the machine's devices; with links, one that has no devices."""
    if links is None:
        # programs run in a worker, which finds no memory on GPUs that this process has taken
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        return make_mesh(shape, platform, names)
    return absent_mesh(shape, names)


def mesh_of(axes: Mapping[str, int], platform: str | None) -> Mesh:
    """Returns the devices for a plan's mesh."""
    return make_mesh(tuple(axes.values()), platform, tuple(axes))


def load_plan(path: str, mesh: AnyMesh, *, quiet: bool = False) -> cfp.Plan:
    """Returns the plan; where it was made elsewhere, a line on stderr says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cfp.PlanWarning)
        plan = cfp.load(path, mesh=mesh)
    for warning in [] if quiet else caught:
        click.echo(f"cfp: {warning.message}", err=True)
    return plan


def named_target(
    target: str | None, options: Mapping[str, Any], path: str, document: Fields
) -> tuple[str, dict[str, Any]]:
    """Returns the target that a command runs with the plan at `path`, and its options; where the
    plan names a function to call, a line on stderr says so first."""
    chosen, options = choose_target(target, options, target_of(document), path)
    if target is None and ":" in chosen:
        click.echo(f"cfp: {path} was made for {chosen}, which is called now.", err=True)
    return chosen, options


@contextmanager
def measuring(
    budget_s: float | None, team: Team | None, kept: Callable[[], str] | None = None
) -> Iterator[TerminalProgress]:
    """Shows progress on stderr; when interrupted, says what is kept: by default, measurements in
    the store."""
    with telling(), TerminalProgress(Console(stderr=True), budget_s) as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            if team is not None and not team.leads:
                raise CfpError("Interrupted.") from None
            said = f"{progress.kept} measurements are kept: the same command goes on from there."
            raise CfpError(f"Interrupted. {said if kept is None else kept()}") from None


@contextmanager
def telling() -> Iterator[None]:
    """Prints what the store warns of as a line on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StoreWarning)
        try:
            yield
        finally:
            for warning in caught:
                click.echo(f"cfp: {warning.message}", err=True)


def process_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--coordinator`, `--num-processes` and `--process-id`: the command gets a
    `Membership`."""
    coordinator, count, index = VARIABLES

    @click.option(
        "--coordinator",
        envvar=coordinator,
        metavar="HOST:PORT",
        help="Where process 0 of several is. [default: as Slurm, Open MPI or Kubernetes say]",
    )
    @click.option(
        "--num-processes",
        envvar=count,
        type=click.IntRange(1),
        help="How many processes there are.",
    )
    @click.option(
        "--process-id", envvar=index, type=click.IntRange(0), help="Which of them this is."
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        coordinator: str | None,
        num_processes: int | None,
        process_id: int | None,
        **options: Any,
    ) -> None:
        membership = Membership(coordinator, num_processes, process_id)
        command(*args, membership=membership, **options)

    return wrapped
