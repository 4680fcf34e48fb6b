"""The text of a compiled module, read: computations, instructions, and the groups of collectives.

`compiled.as_text()` is the partitioned, scheduled program every device runs: what it holds is
what is sent, whatever the plan asked for. The grammar read here, one instruction a line:

    computation  [ENTRY] %NAME (...) -> SHAPE {  INSTRUCTION*  }
    instruction  [ROOT] %NAME = SHAPE OPCODE(%OPERAND, ...), ATTRIBUTE=..., metadata={op_name=...}
    groups       {{0,1},{2,3}}  |  [2,2]<=[4]  |  [2,2]<=[2,2]T(1,0)  |  {} for all devices
                 |  mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(2)2}
                 where 'b':(2)2 is a part of axis b: of size 2, below its leading part of size 2

The ids in groups and (source, target) pairs are partition ids: positions in the program's device
assignment, which is `mesh.devices.flat`. They are never hardware ids: a mesh of the same shape
over the devices in another order compiles to the same groups, so `mesh_axes` needs only the
shape. (`use_global_device_ids=true` means replica * partitions + partition; JAX compiles one
replica.) Sends and receives are not collectives and are left out.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_CALLERS = frozenset({"while", "call", "conditional", "fusion", "async", "custom-call"})

COLLECTIVE = re.compile(
    r"(all-(?:reduce|gather|to-all)|reduce-scatter|collective-(?:permute|broadcast)"
    r"|ragged-all-to-all)(?:-start)?"
)
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+).*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_NAME = re.compile(r"[\w.\-]+")
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|\w+_computations?)=(\{.*?\}|%?[\w.\-]+)")
_OP_NAME = re.compile(r'metadata=\{(?:op_type="[^"]*" )?op_name="((?:[^"\\]|\\.)*)"')
_LISTED = re.compile(r"\{(?:\{[\d, ]*\},?\s*)*\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\]T\(([\d,]+)\)|([\d,]+))\))? \{([^}]*)\}"
)
# what says who talks to whom, as an attribute of a collective
GROUPS = re.compile(
    rf", (?:replica_groups|source_target_pairs)="
    rf"(?:{_LISTED.pattern}|{_IOTA.pattern}|{_MESH.pattern})"
)
_AXIS_REF = re.compile(r"'?([^', :]+)'?(?::\((\d+)\)(\d+))?")

Groups = tuple[tuple[int, ...], ...]
_Ids = npt.NDArray[np.int_]
Module = dict[str, dict[str, "Instruction"]]  # The instructions of each computation.


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line. `rest` is what follows the opcode's parenthesis: operands, then attributes."""

    root: str | None
    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def op_name(self) -> str:
        match = _OP_NAME.search(self.rest)
        return re.sub(r"\\(.)", r"\1", match[1]) if match else ""

    @property
    def operands(self) -> list[str]:
        return [names[-1] for part in comma_parts(self.rest) if (names := _NAME.findall(part))]

    @property
    def called(self) -> list[tuple[str, str]]:
        """Returns (attribute, computation) of every computation that this instruction runs. A -done
        runs nothing."""
        if self.opcode.removesuffix("-start") not in _CALLERS:
            return []
        found = _CALLED.findall(self.rest.partition(" metadata={")[0])
        return [(role, name) for role, text in found for name in _NAME.findall(text)]


def read_module(text: str) -> tuple[Module, str]:
    """Returns the instructions of each computation, in one pass over the lines, and the entry's
    name."""
    module: Module = {}
    entry = name = ""
    for line in text.split("\n"):
        if name and (it := read_line(line)):
            module[name][it.name] = it
        elif match := _HEADER.match(line):
            module[name := match[2]] = {}
            entry = name if match[1] else entry
    if not entry:
        raise ValueError("`text` has no ENTRY computation: pass what compiled.as_text() returns.")
    return module, entry


def read_line(line: str) -> Instruction | None:
    """Returns the instruction of one line; None for any other line."""
    match = _INSTRUCTION.match(line)
    return None if match is None else Instruction(*match.groups())


def trip_count(loop: Instruction) -> int | None:
    """Returns how often the body of a `while` runs, where the compiler says it."""
    trips = re.search(r"known_trip_count\W+n\W+(\d+)", loop.rest)
    return None if trips is None else int(trips[1])


def spanned_axes(groups: Groups, mesh_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the mesh axes along which devices of one group differ, ids being row-major positions
    in a mesh of `mesh_shape`; None where the groups have devices that the mesh has not."""
    count = math.prod(mesh_shape)
    if any(device >= count for group in groups for device in group):
        return None
    place = np.stack(np.unravel_index(np.arange(count), mesh_shape), axis=1)
    spans = {int(a) for g in groups for a in np.flatnonzero(np.ptp(place[list(g)], axis=0))}
    return tuple(sorted(spans))


def mesh_axes(groups: Groups, mesh_shape: tuple[int, ...], kind: str) -> tuple[int, ...] | None:
    """Returns the mesh axes `groups` span, ids being row-major positions in a mesh of `mesh_shape`.

    None if the groups are not the whole mesh cut along whole axes, as when a collective spans
    part of an axis. For the pairs of a collective-permute: the axes along which some source and
    target differ.
    """
    axes = spanned_axes(groups, mesh_shape)
    if axes is None:
        return None
    whole = _group(np.arange(math.prod(mesh_shape)), mesh_shape, axes)
    same = sorted(map(sorted, groups)) == sorted(map(sorted, whole))
    return axes if same or kind == "collective-permute" else None


def groups_of(it: Instruction, device_count: int) -> Groups:
    found = re.search(r"\b(?:replica_groups|source_target_pairs)=(.*)", it.rest)
    text = found[1] if found else "{}"
    if text.startswith("{}"):
        return () if "permute" in it.opcode else (tuple(range(device_count)),)
    if match := _LISTED.match(text):
        return tuple(_ints(group) for group in re.findall(r"\{([\d, ]+)\}", match[0]))
    if match := _IOTA.match(text):
        return _group(_iota(match[2], match[3]), _ints(match[1]), (1,))
    if match := _MESH.match(text):
        return _mesh_groups(match)
    raise ValueError(f"Cannot read the groups of {it.name}: {text[:80]!r}")


def _mesh_groups(mesh: re.Match[str]) -> Groups:
    """Divides each axis where a reference to a part of it begins and ends, then groups whole
    parts."""
    axes, iota, order, devices, grouped = mesh.groups()
    sizes = {name: int(size) for name, size in re.findall(r"'?([^', =]+)'?=(\d+)", axes)}
    refs = [
        (name, int(before or 1), int(before or 1) * int(size or sizes[name]))
        for name, before, size in _AXIS_REF.findall(grouped)
    ]
    dims = {
        (name, low): high // low
        for name, size in sizes.items()
        for low, high in pairwise(sorted({1, size}.union(*(r[1:] for r in refs if r[0] == name))))
    }
    flat = str(math.prod(sizes.values()))
    ids = np.array(_ints(devices)) if devices else _iota(iota or flat, order)
    inside = [list(dims).index((name, low)) for name, low, high in refs if high > low]
    return _group(ids, list(dims.values()), inside)


def _group(ids: _Ids, dims: Sequence[int], inside: Sequence[int]) -> Groups:
    """Returns the ids laid out in `dims`, those that differ along `inside` alone grouped
    together."""
    outside = [dim for dim in range(len(dims)) if dim not in inside]
    rows = ids.reshape(dims).transpose([*outside, *inside])
    return tuple(map(tuple, rows.reshape(-1, math.prod(dims[dim] for dim in inside)).tolist()))


def _iota(dims: str, order: str | None) -> _Ids:
    """Returns 0, 1, 2... laid out in `dims`, transposed, and read off in order."""
    ids = np.arange(math.prod(_ints(dims))).reshape(_ints(dims))
    return (ids.transpose(_ints(order)) if order else ids).reshape(-1)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def comma_parts(text: str) -> list[str]:
    """Returns the parts of `text` up to the bracket that closes what is before it, divided at its
    own commas."""
    found, depth, start = [], 0, 0
    for bracket in re.finditer(r"[()\[\]{},]", text):
        depth += {"(": 1, "[": 1, "{": 1, ",": 0}.get(bracket[0], -1)
        if depth < 0 or (depth == 0 and bracket[0] == ","):
            found.append(text[start : bracket.start()].strip())
            start = bracket.end()
        if depth < 0:
            break
    return found
