"""`cfp report`: the page about a plan."""

from __future__ import annotations

import click

from cfp.cli.options import load_plan
from cfp.devices import reading_mesh
from cfp.plan.file import read_document
from cfp.report import report_path, write_page


@click.command()
@click.argument("path", metavar="PLAN")
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Where to write the page. [default: as PLAN, with .html]",
)
def report(path: str, out: str | None) -> None:
    """Write the page about a plan, to read or to send.

    PLAN is a file that `cfp plan` or `cfp template` wrote. The page is one file: it holds all that
    it needs, and opens without a network. This needs no devices and measures nothing.

    \b
        cfp report plan.json
        cfp report plan.json --out plan-for-anna.html
    """
    plan = load_plan(path, reading_mesh(read_document(path).mesh("mesh")), quiet=True)
    target = out or report_path(path)
    write_page(plan, target)
    click.echo(f"Wrote {target}.", err=True)
