"""`cfp cache`: look at the measurements that were kept, and remove some."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from cfp.duration import parse_duration
from cfp.errors import CfpError
from cfp.profile.store import Store, StoreWarning
from cfp.report.cache import cache_to_json, show_cache


def parse_age(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """`30d` in seconds."""
    try:
        return None if text is None else parse_duration(text)
    except CfpError as error:
        raise click.BadParameter(str(error)) from error


cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(),
    help="Where the measurements are. [default: $XDG_CACHE_HOME/cfp or ~/.cache/cfp]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cache() -> None:
    """Look at the measurements that were kept, or remove some.

    Every measurement is kept, so that no program is measured twice on the same devices.

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
            click.echo(json.dumps(cache_to_json(store), indent=1))
        else:
            show_cache(store, Console())


@cache.command()
@cache_dir_option
@click.option(
    "--older-than", callback=parse_age, metavar="TIME", help="Those made before: 30d, 12h, 10m."
)
@click.option("--failed", is_flag=True, help="Those that failed, so that they are tried again.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@json_option
def prune(
    cache_dir: str | None,
    older_than: float | None,
    failed: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Remove measurements. With several conditions, those that meet them all.

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
    if as_json:
        said = {"path": str(store.path), "removed": removed, "freed_bytes": freed_bytes}
        click.echo(json.dumps(said, indent=1))
    else:
        several = "" if removed == 1 else "s"
        click.echo(f"Removed {removed} measurement{several} from {store.path}.")


@contextmanager
def opened(cache_dir: str | None) -> Iterator[Store]:
    with telling(), Store.open(cache_dir) as store:
        yield store


@contextmanager
def telling() -> Iterator[None]:
    """What the store warns of is a line on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StoreWarning)
        try:
            yield
        finally:
            for warning in caught:
                click.echo(f"cfp: {warning.message}", err=True)
