"""`cfp cache`: look at the measurements and plans that were kept, and remove some."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from cfp.cli.options import cache_dir_option, json_option, parsed, telling
from cfp.duration import parse_duration
from cfp.planning.kept import KeptPlans
from cfp.profile.measure.store import TUNED_FOLDER, Store
from cfp.report.cache import cache_to_json, show_cache


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """Look at the measurements that were kept, or remove some.

    Every measurement is kept, so that no program is measured twice on the same devices. The plans
    that `cfp.jit` made lie beside them.

    \b
        cfp cache show
        cfp cache prune --older-than 30d
    """


@cache.command()
@cache_dir_option
@json_option
def show(cache_dir: str | None, as_json: bool) -> None:
    """Show how many measurements there are, of what, made where and when.

    \b
        cfp cache show
        cfp cache show --cache-dir /scratch/cfp --json
    """
    with opened(cache_dir) as store:
        if as_json:
            click.echo(json.dumps(cache_to_json(store, kept_plans(store)), indent=1))
        else:
            show_cache(store, kept_plans(store), Console())


@cache.command()
@cache_dir_option
@click.option(
    "--older-than",
    callback=parsed(parse_duration),
    metavar="TIME",
    help="Remove measurements older than 30d, 12h, 10m ...",
)
@click.option(
    "--failed", is_flag=True, help="Remove failures, so that those programs are tried again."
)
@click.option("--all", "everything", is_flag=True, help="Remove all measurements.")
@json_option
def prune(
    cache_dir: str | None,
    older_than: float | None,
    failed: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Remove measurements. With several conditions, those that meet them all.

    --all and --older-than alone also remove the plans that `cfp.jit` kept, and --all the choices of
    kernels that XLA kept for GPUs that stand in.

    \b
        cfp cache prune --older-than 30d
        cfp cache prune --failed --older-than 12h
        cfp cache prune --all --cache-dir /scratch/cfp
    """
    chosen = failed or older_than is not None
    if not (chosen or everything):
        raise click.UsageError("Say which to remove: --older-than 30d, --failed or --all.")
    if chosen and everything:
        raise click.UsageError("--all removes every measurement: leave the other conditions out.")
    with opened(cache_dir) as store:
        before_bytes = store.size_bytes
        removed = store.prune(older_than_s=older_than, failed=failed, everything=everything)
        freed_bytes = before_bytes - store.size_bytes
        plans = 0 if failed else kept_plans(store).prune(older_than)
        if everything:
            tuned = store.path.parent / TUNED_FOLDER
            if tuned.exists():
                shutil.rmtree(tuned)
    if as_json:
        said = {"path": str(store.path), "removed": removed, "freed_bytes": freed_bytes}
        click.echo(json.dumps({**said, "plans": plans}, indent=1))
    else:
        several = "" if removed == 1 else "s"
        and_plans = f" and {plans} plan{'s' * (plans > 1)}" if plans else ""
        click.echo(f"Removed {removed} measurement{several}{and_plans} from {store.path}.")


def kept_plans(store: Store) -> KeptPlans:
    return KeptPlans.beside(store.path.parent)


@contextmanager
def opened(cache_dir: str | None) -> Iterator[Store]:
    with telling(), Store.open(cache_dir) as store:
        yield store
