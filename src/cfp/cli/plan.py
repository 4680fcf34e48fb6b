"""`cfp plan`: the fastest plan that fits, by measuring."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import cfp
from cfp.cli.options import (
    SEQUENCE_HELP,
    Command,
    any_mesh,
    cache_dir_option,
    gathered,
    json_option,
    links_option,
    measuring,
    model_options,
    parse_counts,
    parse_mesh,
    parse_names,
    parsed,
    pin_option,
    platform_option,
    process_options,
)
from cfp.cli.targets import keep_target, load_target, tokens_of
from cfp.cluster import TeamLost
from cfp.cluster.join import Membership
from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.links.file import Spec
from cfp.memory_size import parse_memory
from cfp.plan.file import plan_to_json
from cfp.planner import make_plan
from cfp.planning.options import AUDITED, RECOMPUTE, Options
from cfp.planning.scaling import Scaled, all_programs, meshes, scaling, step_time
from cfp.report import report_path, show_planned, show_scaling, write_page


@dataclass(frozen=True, slots=True)
class Output:
    """Where the plan and the page about it go; with `as_json` the plan goes to stdout, and to a
    file only where one is named."""

    out: str | None
    report: str | None
    as_json: bool

    def write(self, best: cfp.Plan, found: Sequence[cfp.Plan]) -> None:
        """Hands over the best of the plans that were found."""
        out = self.out or "plan.json"
        report = self.report or report_path(out)
        if self.out is not None or not self.as_json:
            best.save(out)
            write_page(best, report)
        if self.as_json:
            click.echo(json.dumps(plan_to_json(best), indent=1))
            return
        show_planned(best, Console(), [(one, step_time(one)) for one in found])
        click.echo(f"Wrote {out} and {report}.", err=True)

    def write_scaling(self, best: Sequence[cfp.Plan], rows: Sequence[Scaled]) -> None:
        """Hands over the best plan of every number of devices, and the table of all meshes."""
        path = Path(self.out or "plan.json")
        report = self.report or report_path(str(path))
        if self.out is not None or not self.as_json:
            for one in best:
                one.save(path.with_name(f"{path.stem}-{one.mesh.size}{path.suffix}"))
            write_page(best[-1], report, rows)
        if self.as_json:
            plans = [plan_to_json(one) for one in best]
            table = [row.to_json() for row in rows]
            programs = asdict(all_programs(rows))
            found = {"scaling": table, "programs": programs, "plans": plans}
            click.echo(json.dumps(found, indent=1))
            return
        console = Console()
        show_scaling(rows, console)
        for said in best[-1].notes:
            console.print(said, markup=False, highlight=False)
        names = ", ".join(f"{path.stem}-{one.mesh.size}{path.suffix}" for one in best)
        click.echo(f"Wrote {names} and {report}.", err=True)


@click.command(cls=Command)
@click.argument("target")
@click.option("--mesh", callback=parse_mesh, help="The mesh: 4, 2x4 or 2x2x2.")
@click.option(
    "--devices",
    "counts",
    callback=parse_counts,
    help="Instead of --mesh: try every mesh of 8 devices, or of 4,8,16,32 to see how it scales. "
    "With --links, kernels that meshes have in common are measured once.",
)
@platform_option
@gathered(
    "asked",
    Options,
    click.option(
        "--memory-limit",
        callback=parsed(parse_memory),
        help="Memory per device, such as 12GiB. [default: what devices report, less 5 %]",
    ),
    click.option(
        "--budget",
        callback=parsed(parse_duration),
        help="Return a plan after 90s, 5m, 1h30m ... and the compilation under way.",
    ),
    click.option(
        "--audit",
        type=click.IntRange(0),
        default=AUDITED,
        show_default=True,
        help="How many of the best predictions run as full steps. The fastest is taken, and runs "
        "again on fresh rounds.",
    ),
    click.option(
        "--beside",
        callback=parse_names,
        multiple=True,
        help="Templates that run on those rounds too: megatron,fsdp or all. Repeatable.",
    ),
    pin_option,
    click.option("--sequence", is_flag=True, help=SEQUENCE_HELP),
    click.option(
        "--outer-batch", is_flag=True, help="Let the first mesh axis split the batch alone."
    ),
    click.option(
        "--recompute",
        type=click.Choice([word.replace(" ", "-") for word in RECOMPUTE]),
        callback=lambda context, parameter, word: word.replace("-", " "),
        default=RECOMPUTE[0],
        show_default=True,
        help="What the backward pass computes again to save memory: what the plan finds best, what "
        "the step says (jax.checkpoint), or nothing.",
    ),
    click.option("--exhaustive", is_flag=True, help="Measure every way to split every segment."),
    cache_dir_option,
    links_option,
)
@gathered(
    "output",
    Output,
    click.option(
        "--out",
        type=click.Path(dir_okay=False),
        help="Where to write the plan. [default: plan.json; with --json nowhere]",
    ),
    click.option(
        "--report",
        type=click.Path(dir_okay=False),
        help="Where to write a page about the plan. [default: as --out, with .html: plan.html]",
    ),
    json_option,
)
@process_options
@model_options
def plan(
    target: str,
    mesh: tuple[int, ...] | None,
    counts: tuple[int, ...],
    platform: str | None,
    asked: Options,
    output: Output,
    membership: Membership,
    **options: Any,
) -> None:
    """Find the fastest plan that fits, by measuring on the devices.

    Measures the ways to split each distinct segment, composes them, runs the best few as full steps
    and writes the fastest as a file to train with. What was measured before is not measured again;
    stopped at any moment, the same command goes on.

    TARGET is a model or module:function, as in `cfp analyze`.

    \b
        cfp plan gpt --size small --mesh 4 --platform cpu --beside all
        cfp plan my_project.train:make_step --mesh 2x4 --memory-limit 12GiB
        cfp plan llama --size small --devices 8 --platform cpu --budget 10m
        cfp plan llama --size 7b --mesh 2x8 --links ib_400g,h200_nvlink
        cfp plan llama --size 7b --devices 8,16,32 --links ib_400g,h200_nvlink
    """
    if (mesh is None) == (not counts):
        raise click.UsageError("Give --mesh 2x4, or --devices 8 to try every mesh of 8 devices.")
    tried = _meshes_to_try(mesh, counts, asked)
    count = max(math.prod(shape) for shape, _ in tried)
    joined = membership.joined(count, platform) if asked.links is None else nullcontext()
    with joined as team, measuring(asked.budget_s, team) as progress:
        any_mesh((count,), platform, asked.links)  # all devices, before JAX starts
        step, args = load_target(target, options)
        share = None if asked.budget_s is None else asked.budget_s / len(tried)

        def make(shape: tuple[int, ...], links: Spec | None) -> cfp.Plan:
            devices = any_mesh(shape, platform, links)
            how = replace(asked, budget=share, links=links)
            return make_plan(step, args, devices, how, progress, team)

        found, refused = ([make(*tried[0])], []) if len(tried) == 1 else plan_meshes(tried, make)
    if team is not None and not team.leads:
        return
    if not found:
        listed = ", ".join(map(str, counts))
        raise CfpError(f"No mesh of {listed} devices has a plan. {' '.join(refused)}")
    for why in refused:
        click.echo(f"cfp: {why}", err=True)
    kept = keep_target(target, options)
    if len(counts) > 1:
        sizes = sorted({one.mesh.size for one in found})
        fastest = [min((p for p in found if p.mesh.size == n), key=step_time) for n in sizes]
        rows = scaling(found, tokens_of(target, options))
        output.write_scaling([replace(one, target=kept) for one in fastest], rows)
    else:
        output.write(replace(min(found, key=step_time), target=kept), found)


def _meshes_to_try(
    mesh: tuple[int, ...] | None, counts: Sequence[int], asked: Options
) -> list[tuple[tuple[int, ...], Spec | None]]:
    """Returns the meshes that are planned for, with the links of each where there are some."""
    if mesh is not None:
        return [(mesh, asked.links)]
    links = None if asked.links is None else [part.strip() for part in str(asked.links).split(",")]
    found = [one for count in counts for one in meshes(count, links)]
    if not found:
        raise CfpError(
            f"The links {asked.links} make no mesh of {', '.join(map(str, counts))} devices: they "
            "join fewer. Name a link between machines, too."
        )
    return [(shape, chosen if links is not None else None) for shape, chosen in found]


def plan_meshes(
    tried: Sequence[tuple[tuple[int, ...], Spec | None]],
    make: Callable[[tuple[int, ...], Spec | None], cfp.Plan],
) -> tuple[list[cfp.Plan], list[str]]:
    """Returns the plans of the meshes that have one, and why the others have none."""
    found: list[cfp.Plan] = []
    refused: list[str] = []
    for shape, links in tried:
        try:
            found.append(make(shape, links))
        except TeamLost:
            raise
        except CfpError as error:
            refused.append(f"{'x'.join(map(str, shape))}: {error}")
    return found, refused
