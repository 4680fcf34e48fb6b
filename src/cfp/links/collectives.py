"""The collectives of a compiled module, in the order they run: what each moves, and how often."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat

from cfp.links.hlo import (
    ARRAY,
    COLLECTIVE,
    Groups,
    Instruction,
    Module,
    comma_parts,
    groups_of,
    mesh_axes,
    read_module,
    trip_count,
)

# Callers whose computation's parameters are the call's own operands, one for one.
_INLINE = frozenset({"call", "fusion", "async"})
# Instructions that only restate a value: who made it is asked of their operand.
_RESTATE = frozenset({"bitcast", "copy", "convert", "copy-start", "copy-done", "opt-barrier"})


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
    module, entry = read_module(text)
    return tuple(_walk(_Frame(module, module[entry], None, None, 1, True), device_count))


@dataclass(frozen=True, slots=True)
class MeshCollective:
    """One collective of a program on a mesh. `axes` are the mesh axes that it spans, by position;
    None where it spans part of one."""

    kind: str
    axes: tuple[int, ...] | None
    times: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Returns the bytes per device of one execution, by the rule of `Piece`."""
        return sum(piece.bytes for piece in self.pieces)


def mesh_collectives(text: str, mesh_shape: tuple[int, ...]) -> tuple[MeshCollective, ...]:
    """Returns the collectives of a compiled module that runs on a mesh of this shape."""
    return tuple(
        MeshCollective(
            found.kind, mesh_axes(found.groups, mesh_shape, found.kind), found.times, found.pieces
        )
        for found in parse_collectives(text, math.prod(mesh_shape))
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """The lines of a computation as called from one place, run `times` times."""

    module: Module
    lines: dict[str, Instruction]
    caller: Instruction | None
    parent: "_Frame | None"
    times: int
    exact: bool


def _walk(frame: _Frame, device_count: int) -> Iterator[HloCollective]:
    for it in frame.lines.values():
        if match := COLLECTIVE.fullmatch(it.opcode):
            groups, pieces = groups_of(it, device_count), _pieces(frame, it, match[1])
            yield HloCollective(match[1], it.name, pieces, groups, frame.times, frame.exact)
            continue
        for role, callee in it.called:
            times, exact = frame.times, frame.exact
            if it.opcode == "while":
                trips = trip_count(it)
                # A condition is asked once more than the body runs.
                times *= 1 if trips is None else trips + (role == "condition")
                exact = exact and trips is not None
            inner = _Frame(frame.module, frame.module[callee], it, frame, times, exact)
            yield from _walk(inner, device_count)


def moved_arrays(
    it: Instruction, kind: str, lines: Mapping[str, Instruction]
) -> list[tuple[str, tuple[int, ...], int]]:
    """Returns dtype, sizes and bytes of the arrays that a collective moves, by the rule of `Piece`;
    `lines` are those of its computation."""
    shape = it.shape
    if kind == "reduce-scatter":
        shape = " ".join(lines[operand].shape for operand in it.operands)
    elif it.opcode.endswith("-start") and shape.startswith("("):
        # (operands, results, ...), where an all-reduce mostly states its results alone.
        parts = comma_parts(shape[1:])
        flat = len(parts) == len(it.operands) and not parts[0].startswith("(")
        shape = shape if kind == "all-reduce" and flat else parts[1]
    found = []
    for dtype, dims in ARRAY.findall(shape):
        if dtype not in {"token", "opaque"}:
            sizes = tuple(int(dim.lstrip("<= ")) for dim in dims.split(",") if dim)
            # A dtype states its bits (s4, f8e4m3fn, c64 for both parts); a pred takes a byte.
            bits = re.match(r"[a-z]+(\d+)", dtype)
            size = -(-math.prod(sizes) * (int(bits[1]) if bits else 8) // 8)
            found.append((dtype, sizes, size))
    return found


def _pieces(frame: _Frame, it: Instruction, kind: str) -> tuple[Piece, ...]:
    """Returns the tensors of a collective. A merged one has a piece for each operand, named after
    what made it; another is named after the collective."""
    arrays = moved_arrays(it, kind, frame.lines)
    merged = len(arrays) > 1 and kind != "all-to-all"
    pieces = []
    for (dtype, sizes, size), operand in zip(arrays, chain(it.operands, repeat("")), strict=False):
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
