"""What `cfp cache show` says: how many measurements of what, made where and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console

from cfp.memory_size import bytes_text
from cfp.planning.kept import KeptPlans
from cfp.profile.measure.store import Record, Store
from cfp.report.text import add_row, line, new_table


def show_cache(store: Store, plans: KeptPlans, console: Console) -> None:
    """Prints a row for each environment and kind of program, the newest first."""
    files = plans.files()
    if files:
        several = "s" * (len(files) > 1)
        console.print(line(f"{len(files)} plan{several} in {plans.folder}."), soft_wrap=True)
    groups = _group(store)
    if not groups:
        console.print(line(f"No measurements yet in {store.path}."), soft_wrap=True)
        return
    table = new_table(
        "Measurements", "made on", "what", "programs", "measured", "failed", "oldest", "newest"
    )
    for column in table.columns[2:5]:
        column.justify = "right"
    before = None
    for group in groups:
        if before not in (None, group.environment):
            table.add_section()
        where = "" if before == group.environment else group.environment
        before = group.environment
        counts = (group.programs, group.measured, group.failed)
        times = (_time_text(group.oldest), _time_text(group.newest))
        add_row(table, where, group.kind, *map(str, counts), *times)
    console.print(table)
    total = sum(group.measured for group in groups)
    size = bytes_text(store.size_bytes)
    console.print(line(f"{total} measurements, {size}, in {store.path}."), soft_wrap=True)


def cache_to_json(store: Store, plans: KeptPlans) -> dict[str, Any]:
    """Returns what `show_cache` prints as plain data; times are seconds since 1970."""
    groups = _group(store)
    return {
        "path": str(store.path),
        "size_bytes": store.size_bytes,
        "measured": sum(group.measured for group in groups),
        "failed": sum(group.failed for group in groups),
        "plans": [str(path) for path in plans.files()],
        "groups": [
            {
                "environment": group.environment,
                "kind": group.kind,
                "programs": group.programs,
                "measured": group.measured,
                "failed": group.failed,
                "oldest": group.oldest,
                "newest": group.newest,
            }
            for group in groups
        ],
    }


@dataclass(frozen=True, slots=True)
class _Group:
    """The measurements of one kind of program in one environment."""

    environment: str
    kind: str
    programs: int
    measured: int
    failed: int
    oldest: float
    newest: float


def _group(store: Store) -> list[_Group]:
    """Returns the measurements grouped by environment and kind of program, which is its name up to
    the colon: `layer` of `layer: batch, batch`."""
    found: dict[str, dict[str, list[Record]]] = {}
    for record in store.entries():
        kinds = found.setdefault(record.environment, {})
        kinds.setdefault(record.name.partition(":")[0], []).append(record)
    groups = [
        _Group(
            environment=environment,
            kind=kind,
            programs=len({record.program for record in records}),
            measured=len(records),
            failed=sum(record.failed for record in records),
            oldest=min(record.made_at for record in records),
            newest=max(record.made_at for record in records),
        )
        for environment, kinds in found.items()
        for kind, records in kinds.items()
    ]
    newest: dict[str, float] = {}
    for group in groups:
        newest[group.environment] = max(group.newest, newest.get(group.environment, group.newest))
    return sorted(groups, key=lambda g: (-newest[g.environment], g.environment, -g.newest, g.kind))


def _time_text(made_at: float) -> str:
    return f"{datetime.fromtimestamp(made_at):%Y-%m-%d %H:%M}"
