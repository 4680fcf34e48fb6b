"""`cfp links`: what there is of measured hardware, to plan for devices that are not here."""

from __future__ import annotations

import json

import click
from rich.console import Console

from cfp.cli.options import json_option
from cfp.links import load_link, load_links, shipped_links
from cfp.report.links import link_to_json, show_links


@click.command()
@click.argument("name", required=False)
@json_option
def links(name: str | None, as_json: bool) -> None:
    """List the links that plans can be made with, or show one.

    A link says what collectives take along one mesh axis, by kind, number of devices and bytes. CFP
    has links for common GPUs, fitted to published measurements; `cfp calibrate` measures one of
    yours. NAME is one of those listed, or a file: mine.toml, or mine.toml:x for one of several.

    \b
        cfp links
        cfp links h200_nvlink
        cfp links mine.toml --json
    """
    if name is None:
        found = [load_link(one) for one in shipped_links()]
    elif ":" in name:
        found = [load_link(name)]
    else:
        found = [*load_links(name).values()]
    if as_json:
        click.echo(json.dumps([link_to_json(link) for link in found], indent=1))
    elif name is None:
        show_links(found, Console())
    else:
        click.echo("\n\n".join(link.show() for link in found))
