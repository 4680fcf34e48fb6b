"""Options that several commands take, and the plan and devices they name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console

import cfp
from cfp.cli_cache import telling
from cfp.cluster import Team
from cfp.devices import make_mesh
from cfp.errors import CfpError
from cfp.report import TerminalProgress

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def parse_mesh(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """`4` is (4,) and `2x4` is (2, 4)."""
    if text is None:
        return None
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise click.BadParameter(f"{text!r} is not a mesh: write 4 or 2x4.")
    return tuple(int(size) for size in sizes)


def parse_pins(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """`PATTERN=None,y` splits dim 1 over y, `PATTERN=x+y` dim 0 over both."""
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


def parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """A callback for an option that `parse` reads; what it refuses is a usage error."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except CfpError as error:
            raise click.BadParameter(str(error)) from error

    return callback


pin_option = click.option(
    "--pin",
    "pins",
    multiple=True,
    callback=parse_pins,
    metavar="PATTERN=SPEC",
    help="Fix how arguments lie, by path: 'batch.*=x', 'state.params.*.qkv=None,y'. Repeatable.",
)
mesh_option = click.option("--mesh", callback=parse_mesh, required=True, help="Such as 4 or 2x4.")
platform_option = click.option(
    "--platform",
    type=click.Choice(["cpu", "gpu", "tpu"]),
    help="cpu makes as many virtual devices as the mesh needs. [default: the machine's devices]",
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Size and overrides of the built-in models."""
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


def mesh_of(axes: Mapping[str, int], platform: str | None) -> Mesh:
    """Devices for a plan's mesh."""
    return make_mesh(tuple(axes.values()), platform, tuple(axes))


def load_plan(path: str, mesh: Mesh, *, quiet: bool = False) -> cfp.Plan:
    """The plan; where it was made elsewhere, a line on stderr says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cfp.PlanWarning)
        plan = cfp.load(path, mesh=mesh)
    for warning in [] if quiet else caught:
        click.echo(f"cfp: {warning.message}", err=True)
    return plan


@contextmanager
def measuring(budget_s: float | None, team: Team | None) -> Iterator[TerminalProgress]:
    """Progress on stderr; interrupted, it says what is kept."""
    with telling(), TerminalProgress(Console(stderr=True), budget_s) as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            if team is not None and not team.leads:
                raise CfpError("Interrupted.") from None
            raise CfpError(
                f"Interrupted. {progress.kept} measurements are kept: the same command goes on "
                "from there."
            ) from None
