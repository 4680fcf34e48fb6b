"""The arguments and results of a step as a plan knows them: by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfp.errors import CfpError
from cfp.layouts import Layout, local_shape
from cfp.trace import Graph


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An argument or result of the step, with its layout. One that is `held` is fixed by a pin or
    by the plan's own rule, not by what the blocks want."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    held: bool = False

    def local(self, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
        return local_shape(self.layout, self.shape, mesh_shape)


def planned_tensors(
    graph: Graph,
    values: Sequence[int],
    paths: Sequence[str],
    layouts: Sequence[Layout],
    held: Sequence[int] = (),
) -> tuple[PlannedTensor, ...]:
    return tuple(
        PlannedTensor(
            path,
            graph.values[value].shape,
            str(graph.values[value].dtype),
            layout,
            position in held,
        )
        for position, (value, path, layout) in enumerate(zip(values, paths, layouts, strict=True))
    )


def another_step(reason: str) -> CfpError:
    """Returns the refusal of a step that a plan is not for."""
    return CfpError(
        f"The plan is for another step: {reason}. Plan this step, or give the plan its own."
    )


def difference(planned: Sequence[PlannedTensor], found: Sequence[PlannedTensor]) -> str | None:
    """Returns what sets the arguments of two steps apart, in words; None where they agree."""
    there = {tensor.path: tensor for tensor in found}
    here = {tensor.path: tensor for tensor in planned}
    missing = [path for path in here if path not in there]
    extra = [path for path in there if path not in here]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"the plan has {_some(missing)}, the step has not")
        if extra:
            parts.append(f"the step has {_some(extra)}, the plan has not")
        return "; ".join(parts)
    for path, tensor in here.items():
        other = there[path]
        if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
            return (
                f"`{path}` is {_text(tensor)} in the plan and {_text(other)} in the step"
                + _more(planned, there)
            )
    return None


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"`{paths[0]}`{more}"


def _more(planned: Sequence[PlannedTensor], there: dict[str, PlannedTensor]) -> str:
    count = sum((t.shape, t.dtype) != (there[t.path].shape, there[t.path].dtype) for t in planned)
    return f" (and {count - 1} more differ)" if count > 1 else ""


def _text(tensor: Any) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
