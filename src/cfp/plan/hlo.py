"""The collectives of a compiled module, read from its text.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat

import numpy as np
import numpy.typing as npt

_CALLERS = frozenset({"while", "call", "conditional", "fusion", "async", "custom-call"})
# Callers whose computation's parameters are the call's own operands, one for one.
_INLINE = frozenset({"call", "fusion", "async"})
# Instructions that only restate a value: who made it is asked of their operand.
_RESTATE = frozenset({"bitcast", "copy", "convert", "copy-start", "copy-done", "opt-barrier"})

_COLLECTIVE = re.compile(
    r"(all-(?:reduce|gather|to-all)|reduce-scatter|collective-(?:permute|broadcast)"
    r"|ragged-all-to-all)(?:-start)?"
)
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+).*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_NAME = re.compile(r"[\w.\-]+")
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|\w+_computations?)=(\{.*?\}|%?[\w.\-]+)")
_OP_NAME = re.compile(r'metadata=\{(?:op_type="[^"]*" )?op_name="((?:[^"\\]|\\.)*)"')
_LISTED = re.compile(r"\{(?:\{[\d, ]*\},?\s*)*\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\]T\(([\d,]+)\)|([\d,]+))\))? \{([^}]*)\}"
)
_AXIS_REF = re.compile(r"'?([^', :]+)'?(?::\((\d+)\)(\d+))?")

Groups = tuple[tuple[int, ...], ...]
_Ids = npt.NDArray[np.int_]
_Module = dict[str, dict[str, "_Instruction"]]  # The instructions of each computation.


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor a collective moves; a merged collective has several.

    `shape`, `dtype` and `bytes` are one device's: of the local operand for a reduce-scatter, of
    the local result for every other kind. So an all-gather and the reduce-scatter that undoes it
    count alike, by the tensor the group holds together.
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op_name: str


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective instruction, and `times`, how often one run of the program executes it.

    `times` multiplies the trip counts of the loops around it; a loop that states none counts as
    one trip and makes `exact_times` false. A branch of a conditional counts as taken. `groups`
    are the replica groups, or the (source, target) pairs of a collective-permute. An all-to-all
    of a tuple is one tensor cut into a piece per peer.
    """

    kind: str
    name: str
    pieces: tuple[Piece, ...]
    groups: Groups
    times: int
    exact_times: bool

    @property
    def bytes(self) -> int:
        """Returns the bytes per device of one execution, by the rule of `Piece`."""
        return sum(piece.bytes for piece in self.pieces)


def parse_collectives(text: str, device_count: int) -> tuple[HloCollective, ...]:
    """Returns the collectives of a compiled module, in schedule order, each where it is called."""
    module, entry = _read(text)
    return tuple(_walk(_Frame(module, module[entry], None, None, 1, True), device_count))


def mesh_axes(groups: Groups, mesh_shape: tuple[int, ...], kind: str) -> tuple[int, ...] | None:
    """Returns the mesh axes `groups` span, ids being row-major positions in a mesh of `mesh_shape`.

    None if the groups are not the whole mesh cut along whole axes, as when a collective spans
    part of an axis. For the pairs of a collective-permute: the axes along which some source and
    target differ.
    """
    count = math.prod(mesh_shape)
    if any(device >= count for group in groups for device in group):
        return None
    place = np.stack(np.unravel_index(np.arange(count), mesh_shape), axis=1)
    spans = {int(a) for g in groups for a in np.flatnonzero(np.ptp(place[list(g)], axis=0))}
    axes = tuple(sorted(spans))
    whole = _group(np.arange(count), mesh_shape, axes)
    same = sorted(map(sorted, groups)) == sorted(map(sorted, whole))
    return axes if same or kind == "collective-permute" else None


@dataclass(frozen=True, slots=True)
class _Instruction:
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
        return [names[-1] for part in _parts(self.rest) if (names := _NAME.findall(part))]

    @property
    def called(self) -> list[tuple[str, str]]:
        """Returns (attribute, computation) of every computation that this instruction runs. A -done
        runs nothing."""
        if self.opcode.removesuffix("-start") not in _CALLERS:
            return []
        found = _CALLED.findall(self.rest.partition(" metadata={")[0])
        return [(role, name) for role, text in found for name in _NAME.findall(text)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The lines of a computation as called from one place, run `times` times."""

    module: _Module
    lines: dict[str, _Instruction]
    caller: _Instruction | None
    parent: "_Frame | None"
    times: int
    exact: bool


def _read(text: str) -> tuple[_Module, str]:
    """Returns the instructions of each computation, in one pass over the lines, and the entry's
    name."""
    module: _Module = {}
    entry = name = ""
    for line in text.split("\n"):
        if name and (match := _INSTRUCTION.match(line)):
            module[name][match[2]] = _Instruction(*match.groups())
        elif match := _HEADER.match(line):
            module[name := match[2]] = {}
            entry = name if match[1] else entry
    if not entry:
        raise ValueError("`text` has no ENTRY computation: pass what compiled.as_text() returns.")
    return module, entry


def _walk(frame: _Frame, device_count: int) -> Iterator[HloCollective]:
    for it in frame.lines.values():
        if match := _COLLECTIVE.fullmatch(it.opcode):
            groups, pieces = _groups(it, device_count), _pieces(frame, it, match[1])
            yield HloCollective(match[1], it.name, pieces, groups, frame.times, frame.exact)
            continue
        for role, callee in it.called:
            times, exact = frame.times, frame.exact
            if it.opcode == "while":
                trips = re.search(r"known_trip_count\W+n\W+(\d+)", it.rest)
                # A condition is asked once more than the body runs.
                times *= int(trips[1]) + (role == "condition") if trips else 1
                exact = exact and trips is not None
            inner = _Frame(frame.module, frame.module[callee], it, frame, times, exact)
            yield from _walk(inner, device_count)


def _pieces(frame: _Frame, it: _Instruction, kind: str) -> tuple[Piece, ...]:
    """Returns the tensors of a collective. A merged one has a piece for each operand, named after
    what made it; another is named after the collective."""
    shape = it.shape
    if kind == "reduce-scatter":
        shape = " ".join(frame.lines[operand].shape for operand in it.operands)
    elif it.opcode.endswith("-start") and shape.startswith("("):
        # (operands, results, ...), where an all-reduce mostly states its results alone.
        parts = _parts(shape[1:])
        flat = len(parts) == len(it.operands) and not parts[0].startswith("(")
        shape = shape if kind == "all-reduce" and flat else parts[1]
    arrays = [found for found in _ARRAY.findall(shape) if found[0] not in {"token", "opaque"}]
    merged = len(arrays) > 1 and kind != "all-to-all"
    pieces = []
    for (dtype, dims), operand in zip(arrays, chain(it.operands, repeat("")), strict=False):
        sizes = tuple(int(dim.lstrip("<= ")) for dim in dims.split(",") if dim)
        # A dtype states its bits (s4, f8e4m3fn, c64 for both parts); a pred takes a byte.
        bits = re.match(r"[a-z]+(\d+)", dtype)
        size = -(-math.prod(sizes) * (int(bits[1]) if bits else 8) // 8)
        op_name = (not merged and it.op_name) or _origin(frame, operand) or it.op_name
        pieces.append(Piece(size, sizes, dtype, op_name))
    return tuple(pieces)


def _origin(frame: _Frame, name: str, element: int | None = None) -> str:
    """Returns the op_name of what made a value (or one element of a tuple), "" if nothing says."""
    if (made := frame.lines.get(name)) is None:
        return ""
    if made.opcode == "parameter" and frame.caller and frame.parent:
        if frame.caller.opcode.removesuffix("-start") in _INLINE:
            return _origin(frame.parent, frame.caller.operands[int(made.operands[0])], element)
        return ""  # A loop's state: its metadata is the loop's.
    if made.opcode == "tuple" and element is not None:
        return _origin(frame, made.operands[element])
    deeper = ""
    if made.opcode in _RESTATE:
        deeper = _origin(frame, made.operands[0], element)
    elif made.opcode == "get-tuple-element":
        source = frame.lines.get(made.operands[0])
        if not made.op_name or (source and source.opcode in {"tuple", "fusion"}):
            index = re.search(r"\bindex=(\d+)", made.rest)
            deeper = _origin(frame, made.operands[0], int(index[1]) if index else None)
    elif made.opcode == "fusion" and (element is not None or not made.op_name):
        lines = frame.module[made.called[0][1]]
        root = next(line.name for line in lines.values() if line.root)
        deeper = _origin(_Frame(frame.module, lines, made, frame, 1, True), root, element)
    return deeper or made.op_name


def _groups(it: _Instruction, device_count: int) -> Groups:
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


def _parts(text: str) -> list[str]:
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
