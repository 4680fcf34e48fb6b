"""`cfp export`: a plan's shardings for programs that do not have CFP."""

from __future__ import annotations

import json
from typing import Any

import click

from cfp.cli.options import load_plan
from cfp.devices import reading_mesh
from cfp.export import rules_text
from cfp.plan.file import plan_to_json, read_document
from cfp.writing import write_whole

FORMATS = ("python", "rules", "json")


@click.command()
@click.argument("path", metavar="PLAN")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="python",
    show_default=True,
    help="python: NamedShardings by path, and how to apply them. rules: regular expressions by "
    "path, the first match counts. json: both as data.",
)
@click.option("--argument", help="Make rules for the paths within this argument of the step.")
@click.option("--out", type=click.Path(dir_okay=False), help="Where to write it. [default: stdout]")
def export(path: str, form: str, argument: str | None, out: str | None) -> None:
    """Write a plan's shardings for programs that do not have CFP.

    PLAN is a file that `cfp plan` or `cfp template` wrote. Needs no devices.

    \b
        cfp export plan.json --out shardings.py
        cfp export plan.json --format rules --argument params
        cfp export plan.json --format json
    """
    if argument is not None and form == "python":
        raise click.UsageError("--argument is for --format rules and json: leave it out.")
    plan = load_plan(path, reading_mesh(read_document(path).mesh("mesh")), quiet=True)
    if form == "python":
        text = plan.snippet()
    else:
        rules = plan.to_rules(argument)
        title = f"Rules of the plan {plan.name!r}."
        text = rules_text(title, rules, argument) if form == "rules" else _data(plan, rules)
    if out is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        write_whole(out, text, "export")
        click.echo(f"Wrote {out}.", err=True)


def _data(plan: Any, rules: Any) -> str:
    document = plan_to_json(plan)
    kept = {name: document[name] for name in ("name", "mesh", "argument_names")}
    for part in ("arguments", "results"):
        kept[part] = {path: one["spec"] for path, one in document[part].items()}
    kept["rules"] = [[pattern, [*spec]] for pattern, spec in rules]
    return json.dumps(kept, indent=1) + "\n"
