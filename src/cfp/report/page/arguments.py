"""Every argument of the step by path, and the large ones that every device holds whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cfp.plan import Plan
from cfp.plan.tensor import PlannedTensor
from cfp.report.plan import fold_paths, index_free
from cfp.report.tensors import local_bytes, whole_bytes
from cfp.report.text import spec_text

LARGE = 0.01  # of what a device holds of all arguments: less is not worth a word
MOST_ROWS = 4000  # rows of the table: a browser sorts them at once, in some 800 kB of the page


@dataclass(frozen=True, slots=True)
class Row:
    path: str
    shape: str
    dtype: str
    spec: str
    local_bytes: int
    whole_bytes: int
    held: bool
    replicated: bool  # large, whole on every device, and some dim of it divides


@dataclass(frozen=True, slots=True)
class Replicated:
    """Large tensors alike that are whole on every device; split, `saves_bytes` would be free."""

    path: str
    count: int
    bytes: int
    saves_bytes: int


@dataclass(frozen=True, slots=True)
class Arguments:
    rows: tuple[Row, ...]
    left_out: int
    local_bytes: int
    whole_bytes: int
    replicated: tuple[Replicated, ...]


def arguments_of(plan: Plan) -> Arguments:
    shape = plan.mesh_shape
    total = sum(local_bytes(tensor, shape) for tensor in plan.arguments)
    large = [t for t in plan.arguments if _replicated(t, shape, LARGE * total)]
    marked = {tensor.path for tensor in large}
    rows = [
        Row(
            tensor.path,
            "\N{MULTIPLICATION SIGN}".join(map(str, tensor.shape)) or "scalar",
            tensor.dtype,
            spec_text(tensor.layout, plan.mesh.axis_names),
            local_bytes(tensor, shape),
            whole_bytes(tensor),
            tensor.held,
            tensor.path in marked,
        )
        for tensor in plan.arguments
    ]
    rows.sort(key=lambda row: -row.local_bytes)
    return Arguments(
        tuple(rows[:MOST_ROWS]),
        max(len(rows) - MOST_ROWS, 0),
        total,
        sum(map(whole_bytes, plan.arguments)),
        tuple(_groups(large, plan.mesh.size)),
    )


def _replicated(tensor: PlannedTensor, mesh_shape: tuple[int, ...], least_bytes: float) -> bool:
    """Returns whether a tensor is large and whole on every device although a dim divides."""
    devices = max(mesh_shape)
    return (
        devices > 1
        and whole_bytes(tensor) >= max(least_bytes, 1)
        and local_bytes(tensor, mesh_shape) == whole_bytes(tensor)
        and any(size % devices == 0 for size in tensor.shape)
    )


def _groups(tensors: Sequence[PlannedTensor], devices: int) -> list[Replicated]:
    alike: dict[object, list[PlannedTensor]] = {}
    for tensor in tensors:
        alike.setdefault((index_free(tensor.path), tensor.shape), []).append(tensor)
    found = []
    for group in alike.values():
        size = sum(map(whole_bytes, group))
        path = fold_paths([tensor.path for tensor in group])
        found.append(Replicated(path, len(group), size, size - size // devices))
    return sorted(found, key=lambda one: -one.bytes)
