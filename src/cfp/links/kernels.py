"""Which compiled modules have the same kernels, and the schedule of one with the times of another.

The kernels of a compiled program take the same time on any mesh where one device's part of the
program is the same but for whom it talks to: `batch` over an axis of 8 and `batch` over both axes
of 2x4 differ in the groups of their collectives alone. So a module is known by a fingerprint of its
text, from which only what no kernel depends on is taken out:

    the module's name, the number of its partitions, where its lines come from (metadata)
    names of instructions and computations, which become numbers in order of their first mention
    how the arguments of the whole mesh are split (sharding): their local shapes stay
    of a collective: its groups or pairs, its channel, and how it is carried out
    the values of a table with an entry per partition that is read by the number of the partition

All else counts: every shape, layout, operand, constant and setting of every instruction, inside
fusions too, and their order. A line of a form that nobody thought of counts as it stands. So two
modules with the same kernels may be told apart, and both are then measured; but two that are taken
for the same are equal in all of this.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cfp.links.hlo import COLLECTIVE, GROUPS, Instruction, read_line, read_module
from cfp.links.schedule import SYNC, Moment, Schedule, ScheduledLoop, read_schedule


@dataclass(frozen=True, slots=True)
class Kernels:
    """What is known of a program's kernels before it runs: the fingerprint of its module, and its
    schedule without times."""

    fingerprint: str
    schedule: Schedule


def read_kernels(text: str, axes: Mapping[str, int]) -> Kernels:
    """Returns what a compiled module on a mesh says of its kernels; raises `NotReplayable` where it
    has no schedule."""
    return Kernels(fingerprint(text), read_schedule(text, axes))


def fingerprint(text: str) -> str:
    """Returns a digest that modules with the same kernels in the same order have in common."""
    digest = hashlib.sha256()
    for line in _lines(text):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def with_times(bare: Schedule, measured: Schedule) -> Schedule:
    """Returns a schedule without times with those of one that was measured, of a program with the
    same kernels. Raises `ValueError` where the two are not of such programs."""
    return Schedule(_with_times(bare.moments, measured.moments), measured.unplaced_s)


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_INNER = rf'(?:[^{{}}"]|{_QUOTED}|\{{(?:[^{{}}"]|{_QUOTED})*\}})*'  # of braces, one level inside
_METADATA = re.compile(rf", (?:metadata|sharding)=\{{{_INNER}\}}")
_MODULE = re.compile(
    rf"HloModule [^,]+|, num_partitions=\d+|, allow_spmd_sharding_propagation_to_\w+=\{{[^}}]*\}}"
    rf"|, frontend_attributes=\{{fingerprint_before_lhs={_QUOTED}\}}"
)
_CHANNEL = re.compile(r", channel_id=\d+")
_CARRIED_OUT = re.compile(r", backend_config=.*")  # the last thing in a line, metadata apart
_COMPUTATION = re.compile(r"(ENTRY )?(%[\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"%[\w.\-]+")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_LITERAL = re.compile(r"constant\(\{[^{}]*\}\)")
_READERS = frozenset({"fusion", "dynamic-slice", "call"})  # that may read a table's entry


def _lines(text: str) -> Iterator[str]:
    """Yields the lines of a module that its kernels depend on, with numbers for names."""
    numbers: dict[str, str] = {}
    tables = _tables(text)
    head, *lines = text.split("\n")
    yield _MODULE.sub("", head)
    begun = False
    for line in lines:
        if opening := _COMPUTATION.match(line):  # its arguments are lines of their own, too
            begun = True
            line = f"{opening[1] or ''}{opening[2]} {{"
        elif begun:
            line = _without_partners(_METADATA.sub("", line), tables)
        else:
            continue  # names of files and functions
        yield _NAME.sub(lambda name: numbers.setdefault(name[0], f"%{len(numbers)}"), line)


def _without_partners(line: str, tables: frozenset[str]) -> str:
    """Returns a line without what says whom a device talks to, and which part of a whole it has."""
    it = read_line(line)
    if it is None:
        return line
    if COLLECTIVE.fullmatch(it.opcode.removesuffix("-done")):
        kept = _CHANNEL.sub("", GROUPS.sub("", _CARRIED_OUT.sub("", line)))
        return f"{kept}, is_sync={SYNC.search(it.rest) is not None}"
    if it.name in tables:
        return _LITERAL.sub("constant(by partition)", line)
    return line


def _tables(text: str) -> frozenset[str]:
    """Returns the constants of one integer per partition that nobody reads but with the number of
    the partition at hand: they say where a device's part of a whole begins."""
    count = _PARTITIONS.search(text.partition("\n")[0])
    if count is None:
        return frozenset()
    module, _ = read_module(text)
    entries = re.compile(rf"[su]32\[{count[1]}\]\{{0\}}")
    found: set[str] = set()
    for lines in module.values():
        ids = {it.name for it in lines.values() if it.opcode == "partition-id"}
        constants = {
            it.name
            for it in lines.values()
            if it.opcode == "constant" and entries.fullmatch(it.shape)
        }
        for it in lines.values() if constants else ():
            used = constants.intersection(_operands(it))
            if used and not (it.opcode in _READERS and ids.intersection(_operands(it))):
                constants -= used
        found |= constants
    return frozenset(found)


def _operands(it: Instruction) -> list[str]:
    return [] if it.opcode in ("constant", "parameter") else it.operands


def _with_times(bare: Sequence[Moment], measured: Sequence[Moment]) -> tuple[Moment, ...]:
    """Returns moments with the kernels of others; what runs after the last collective is a moment
    that those without times do not have."""
    last = measured[len(bare) :]
    if len(measured) < len(bare) or len(last) > 1 or any(map(_talks, last)):
        raise ValueError("the two schedules have other collectives")
    made = []
    for own, other in zip(bare, measured, strict=False):
        if _shape(own) != _shape(other):
            raise ValueError("the two schedules have other collectives")
        loop = own.loop
        if loop is not None and other.loop is not None:
            loop = ScheduledLoop(loop.times, _with_times(loop.body, other.loop.body))
        made.append(replace(own, compute_s=other.compute_s, loop=loop))
    return (*made, *last)


def _talks(moment: Moment) -> bool:
    return not (moment.transfer is None and moment.wait is None and moment.loop is None)


def _shape(moment: Moment) -> tuple[object, ...]:
    """Returns what two moments have in common whose programs differ in their groups alone."""
    transfer, loop = moment.transfer, moment.loop
    moves = None if transfer is None else (transfer.kind, transfer.bytes)
    return (moves, moment.wait, None if loop is None else loop.times)
