"""The tables of `cfp explain`: what is split where, and what that makes the devices send.

What repeats is shown once. Segments that are split alike are one group of rows; arguments whose
paths differ in list indices alone, and lie alike, are one row; so are the tensors that the same
place in alike segments sends.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from cfp.blocks import REPLICATED, legend
from cfp.layouts import Layout
from cfp.memory_size import bytes_text
from cfp.plan import Collective, Plan
from cfp.plan.choice import alike, segments_text
from cfp.plan.tensor import PlannedTensor
from cfp.report.collectives import collectives_table
from cfp.report.evidence import show_evidence
from cfp.report.tensors import local_bytes, whole_bytes
from cfp.report.text import (
    NOT_MEASURED,
    WHOLE,
    WHOLE_LEGEND,
    add_row,
    line,
    mesh_text,
    new_table,
    shape_text,
    spec_text,
    time_text,
)
from cfp.segments.keep import Keep

# a list index, an integer key, and the number at the end of a key: [3], ['3'], ['layers_3']
_INDEX = re.compile(r"(?<=\[)\d+(?=\])|(?<=\[')\d+(?='\])|(?<=_)\d+(?='\])")
# the same in a seed's text, where a path is followed by its shape: [3]['qkv'][64,192]
_SEED_INDEX = re.compile(r"(?<=\[)\d+(?=\][\[.])|(?<=\[')\d+(?='\])|(?<=_)\d+(?='\])")
_MOST_VALUES = 20  # rows of a table: what a screen shows
TEXT_WIDTH = 100  # columns of `plan.show()`: what editors and notebooks show without wrapping


def show_plan(
    plan: Plan,
    console: Console,
    *,
    collectives: Sequence[Collective] | None = None,
    memory_bytes: int | None = None,
) -> None:
    """Prints the whole plan; `collectives` and `memory_bytes` are those of the compiled step."""
    show_head(plan, console, memory_bytes)
    show_evidence(plan, console)
    if plan.segments:
        console.print(_blocks_table(plan))
        if plan.evidence is None:  # which says it at its own table of splits
            console.print(line(legend(splits_of(plan))))
    if plan.values:
        console.print(_values_table(plan))
    _show_arguments(plan, console)
    found = plan.saved_collectives if collectives is None else collectives
    if found is None:
        console.print(
            "The collectives are not in this plan: `cfp explain PLAN TARGET` compiles the step "
            "to find them.",
            highlight=False,
        )
    elif not found:
        console.print("The step sends nothing: it has no collectives.", highlight=False)
    else:
        console.print(collectives_table(plan, found))


def plan_text(plan: Plan, width: int = TEXT_WIDTH) -> str:
    """Returns the plan and why it was chosen as text, without its arguments and collectives."""
    text = io.StringIO()
    console = Console(file=text, width=width)
    show_head(plan, console, None)
    show_evidence(plan, console)
    if plan.segments:
        console.print(_blocks_table(plan))
    if plan.values:
        console.print(_values_table(plan))
    return "\n".join(said.rstrip() for said in text.getvalue().splitlines()).strip("\n")


def show_head(plan: Plan, console: Console, memory_bytes: int | None) -> None:
    """Prints what the plan is for, where it was made, and what is predicted."""
    made = plan.environment
    same = made.device_kind.lower() == made.platform.lower()
    devices = made.platform if same else f"{made.device_kind} ({made.platform})"
    hosts = f", {made.processes} processes" if made.processes > 1 else ""
    where = f"on {devices}{hosts}" if made.platform else "without devices"
    lines = [
        f"{plan.name}: a plan for a mesh of {mesh_text(plan)}.",
        f"Made {where} with jax {made.jax} and cfp {made.cfp}.",
    ]
    if plan.target is not None:
        lines.insert(1, f"It is for `{plan.target.show()}`.")
    if plan.predicted is not None:
        cost = plan.predicted
        if cost.compute_s is None or cost.communication_s is None:
            parts = f"how much of it is communicating: {NOT_MEASURED}"
        else:
            compute, sent = map(time_text, (cost.compute_s, cost.communication_s))
            replayed = plan.evidence is not None and plan.evidence.links is not None
            beside = ", by links, with nothing computed beside it" if replayed else ""
            parts = f"{compute} computing, {sent} communicating{beside}"
        lines.append(
            f"Predicted: {time_text(cost.time_s)} a step ({parts}), "
            f"{bytes_text(cost.memory_bytes)} on each device."
        )
    if memory_bytes is not None:
        lines.append(f"The compiled step needs {bytes_text(memory_bytes)} on each device.")
    if plan.sequence:
        lines.append("Sequence dims are split on their own.")
    for said in (*lines, *plan.notes):
        console.print(line(said))


def splits_of(plan: Plan) -> list[str]:
    """Returns what the plan's blocks split, in words."""
    return [
        split or REPLICATED
        for segment in plan.segments
        for block in segment.blocks
        for split in block.splits
    ]


def _blocks_table(plan: Plan) -> Table:
    axes = [f"{axis} splits" for axis in plan.mesh.axis_names]
    table = new_table("Blocks", "segments", "block", "starts with", *axes)
    for group in alike(plan.segments):
        for place, block in enumerate(plan.segments[group[0]].blocks):
            seed = fold_seed(block.seed) if len(group) > 1 else block.seed
            where = segments_text(group) if place == 0 else ""
            if place == 0 and plan.segments[group[0]].keep is not Keep.AS_WRITTEN:
                where += f"\nkeeps {plan.segments[group[0]].keep.value}"
            splits = [split or REPLICATED for split in block.splits]
            add_row(table, where, str(place), seed, *splits)
        table.add_section()
    return table


def _values_table(plan: Plan) -> Table:
    """Returns a table of the tensors that the plan fixes one by one: equal ones share a row, the
    largest come first."""
    kinds: Counter[tuple[str, str, tuple[int, ...], Layout]] = Counter()
    for value in plan.values:
        which = "its result" if value.operand is None else f"operand {value.operand}"
        kinds[value.primitive, which, value.shape, value.layout] += 1
    table = new_table(
        f"Tensors inside the step: {len(plan.values)} are fixed one by one",
        "operation",
        "tensor",
        "shape",
        "sharding",
        "times",
    )
    order = sorted(kinds.items(), key=lambda item: (-math.prod(item[0][2]), str(item[0])))
    for (primitive, which, shape, layout), count in order[:_MOST_VALUES]:
        spec = spec_text(layout, plan.mesh.axis_names)
        add_row(table, primitive, which, shape_text(shape), spec, str(count))
    if len(order) > _MOST_VALUES:
        add_row(table, f"and {len(order) - _MOST_VALUES} kinds more, all smaller", "", "", "", "")
    return table


@dataclass(frozen=True, slots=True)
class _Folded:
    """Arguments of one shape and sharding whose paths differ in indices alone.

    The path is in two parts: `section` up to the first key, and `rest`.
    """

    section: str
    rest: str
    tensors: tuple[PlannedTensor, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        first = self.tensors[0]
        return (self.rest, first.shape, first.layout, len(self.tensors))


def _show_arguments(plan: Plan, console: Console) -> None:
    mesh_shape, names = plan.mesh_shape, plan.mesh.axis_names
    sections: dict[str, list[_Folded]] = {}
    for row in _fold([tensor for tensor in plan.arguments if tensor.shape]):
        sections.setdefault(row.section, []).append(row)
    table = new_table("Arguments", "argument", "times", "shape", "sharding", "per device", "bytes")
    shown: dict[object, str] = {}
    for section, rows in sections.items():
        lie = frozenset(row.signature for row in rows)
        held = frozenset(row.rest for row in rows if row.tensors[0].held)
        like = shown.get((lie, held) if held else lie)
        if len(rows) > 1 and like is not None:
            total = sum(local_bytes(t, mesh_shape) for row in rows for t in row.tensors)
            add_row(table, f"{section}, all like {like}", "", "", "", "", bytes_text(total))
            table.add_section()
            continue
        shown.setdefault(lie, section)
        shown.setdefault((lie, held), section)
        if len(rows) > 1:
            add_row(table, section, "", "", "", "", "")
        for row in rows:
            first = row.tensors[0]
            spec = spec_text(first.layout, names) + (" held" if first.held else "")
            add_row(
                table,
                f"  {row.rest}" if len(rows) > 1 else f"{section}{row.rest}",
                f"x{len(row.tensors)}" if len(row.tensors) > 1 else "",
                shape_text(first.shape),
                spec,
                shape_text(first.local(mesh_shape)),
                bytes_text(sum(local_bytes(tensor, mesh_shape) for tensor in row.tensors)),
            )
        table.add_section()
    on_one = sum(local_bytes(tensor, mesh_shape) for tensor in plan.arguments)
    unsplit = sum(map(whole_bytes, plan.arguments))
    add_row(table, f"in all (unsplit: {bytes_text(unsplit)})", "", "", "", "", bytes_text(on_one))
    console.print(table)
    scalars = [tensor.path for tensor in plan.arguments if not tensor.shape]
    if scalars:
        more = f" and {len(scalars) - 4} more" if len(scalars) > 4 else ""
        console.print(line(f"Scalars, on every device: {', '.join(scalars[:4])}{more}."))
    if any(tensor.shape and spec_text(tensor.layout, names) == WHOLE for tensor in plan.arguments):
        console.print(line(WHOLE_LEGEND))
    if any(tensor.held for tensor in plan.arguments):
        console.print(
            "held: this sharding is fixed by a pin or by the plan's own rule.", highlight=False
        )


def _fold(tensors: Sequence[PlannedTensor]) -> list[_Folded]:
    groups: dict[object, list[PlannedTensor]] = {}
    for tensor in tensors:
        key = (index_free(tensor.path), tensor.shape, tensor.layout, tensor.held)
        groups.setdefault((*key, tensor.dtype), []).append(tensor)
    rows: list[_Folded] = []
    for group in groups.values():
        path = fold_paths([tensor.path for tensor in group])
        at = path.find("['") if "['" in path else path.find("[")
        at = len(path) if at < 0 else at
        rows.append(_Folded(path[:at], path[at:], tuple(group)))
    return rows


def fold_seed(seed: str) -> str:
    """Returns the text of a seed with `*` for the indices of its paths."""
    return _SEED_INDEX.sub("*", seed)


def index_free(path: str) -> str:
    """Returns a path with `*` for every index: those of alike layers are equal."""
    return _INDEX.sub("*", path)


def fold_paths(paths: Sequence[str]) -> str:
    """Returns one path for several that differ in indices: `*` stands for those indices."""
    columns = list(zip(*(_INDEX.findall(path) for path in paths), strict=True))
    found = iter([column[0] if len(set(column)) == 1 else "*" for column in columns])
    return _INDEX.sub(lambda _: next(found), paths[0])
