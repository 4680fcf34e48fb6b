"""`cfp calibrate`: links of a mesh whose devices are here, by measuring them."""

from __future__ import annotations

import json
import math

import click
from rich.console import Console

from cfp.calibration import calibrate as calibrate_mesh
from cfp.cli.options import (
    Command,
    json_option,
    measuring,
    mesh_option,
    parsed,
    platform_option,
    process_options,
)
from cfp.cluster.join import Membership
from cfp.devices import make_mesh
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.links import Link
from cfp.links.file import SUFFIX, write_links
from cfp.memory_size import parse_memory
from cfp.report.links import link_to_json, show_links

COMMENT = "The links of a mesh, an axis each: cfp plan --links FILE plans with them."


@click.command(cls=Command)
@mesh_option
@click.option(
    "--out", type=click.Path(), required=True, help="The file to write, such as mine.toml."
)
@platform_option
@click.option("--budget", callback=parsed(parse_duration), help="Stop after 90s, 5m, 1h30m ...")
@click.option(
    "--largest",
    callback=parsed(parse_memory),
    help="The largest tensor to move, such as 64MiB. [default: 256MiB, and 16MiB of CPUs]",
)
@json_option
@process_options
def calibrate(
    mesh: tuple[int, ...],
    out: str,
    platform: str | None,
    budget: float | None,
    largest: int | None,
    as_json: bool,
    membership: Membership,
) -> None:
    """Measure what collectives take along each axis of a mesh, and write its links.

    Sizes rise from a kilobyte. The file is written anew after each of them, so that Ctrl-C keeps
    what was measured. On several hosts start it on all of them, as `cfp plan`.

    \b
        cfp calibrate --mesh 2x8 --out mine.toml
        cfp launch --processes 2 -- cfp calibrate --mesh 4 --platform cpu --out mine.toml
    """
    if not out.endswith(SUFFIX):
        raise CfpError(f"A link file ends in {SUFFIX}, and --out is {out}: write {out}{SUFFIX}.")
    kept: list[Link] = []

    def keep(links: tuple[Link, ...]) -> None:
        write_links(out, links, COMMENT)
        kept[:] = links

    def said() -> str:
        if not kept:
            return "Too little was measured to make a link of."
        return f"{out} has what was measured."

    with (
        membership.joined(math.prod(mesh), platform) as team,
        measuring(budget, team, said) as progress,
    ):
        devices = make_mesh(mesh, platform)
        found = calibrate_mesh(
            devices,
            largest_bytes=largest,
            budget_s=budget,
            progress=progress,
            team=team,
            keep=keep,
        )
    if team is not None and not team.leads:
        return
    if as_json:
        click.echo(json.dumps([link_to_json(link) for link in found], indent=1))
    else:
        show_links(found, Console())
        click.echo(f"Wrote {out}. Plan with it: cfp plan ... --links {out}")
