"""The tensors that cross from one segment to another, and how they lie on both sides.

A crossing has two ends: the result of one segment, an argument of another. Forward these are
activations, backward cotangents. An argument of the step that several segments read (tied weights,
a mask) lies as the segment that updates it wants, or the first that reads it; the others get it
from there. What goes round a loop crosses from one iteration to the next. Where the ends lie
differently the tensor is resharded, which is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cfp.analysis import Analysis
from cfp.layouts import Layout, Layouts
from cfp.profile.kinds import Kind, shift_dims
from cfp.profile.requests import Resharding
from cfp.segments.program import Cutter, forward_loop
from cfp.trace import LOOP_ENTER, LOOP_PRIMITIVES, LOOP_SLICE, LOOP_STACK, Role, is_key


@dataclass(frozen=True, slots=True)
class End:
    """Where a tensor leaves or enters a segment: which cut of its kind, and the position."""

    kind: int
    cut: int
    position: int
    result: bool

    def layout(self, layouts: Sequence[Layouts]) -> Layout:
        """How it lies there, given the layouts of the kind's cuts."""
        lie = layouts[self.cut]
        return lie.outputs[self.position] if self.result else lie.inputs[self.position]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A crossing as all segments of two kinds share it; `shift` dims were added on the way."""

    source: End
    target: End
    shape: tuple[int, ...]
    dtype: str
    shift: int
    what: str  # activation, cotangent, argument or update

    def resharding(self, source: Sequence[Layouts], target: Sequence[Layouts]) -> Resharding | None:
        """What must be done for two choices; None where the ends lie alike."""
        left = shift_dims(self.source.layout(source), self.shift)
        right = self.target.layout(target)
        return None if left == right else Resharding(self.shape, self.dtype, left, right)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A boundary between two segments of the step, `times` per step."""

    source: int
    target: int
    boundary: Boundary
    times: int


def find_crossings(analysis: Analysis, kinds: Sequence[Kind]) -> tuple[Crossing, ...]:
    """All tensors but scalars and PRNG keys."""
    return tuple(_Finder(analysis, kinds).find())


def find_homes(analysis: Analysis, kinds: Sequence[Kind]) -> dict[int, tuple[int, End]]:
    """Argument of the step (its value) -> the segment at which it lies as it is wanted: the one
    that updates it, or the first that reads it."""
    return _Finder(analysis, kinds).homes


def find_entries(
    analysis: Analysis, kinds: Sequence[Kind]
) -> dict[tuple[int, int], tuple[int, End]]:
    """Where a segment outside loops reads what another made, or an argument that lies as another
    wants it: (equation, operand) -> the segment, and where that tensor enters it."""
    return dict(_Finder(analysis, kinds).entries())


class _Finder:
    def __init__(self, analysis: Analysis, kinds: Sequence[Kind]) -> None:
        self.analysis = analysis
        self.graph = analysis.graph
        self.kinds = kinds
        self._carried = dict(pair for loop in self.graph.loops for pair in loop.carries)
        cutter = Cutter(analysis.graph, analysis.grouping, analysis.cut)
        self._arguments: list[tuple[int, int, End]] = []  # (segment, value, end), in order
        self._made: dict[int, tuple[int, End]] = {}
        self._loops: dict[tuple[int, int], int | None] = {}  # (segment, cut) -> its loop
        # segment outside loops -> its equations, and those of its arguments whose place is sure
        self._readers: dict[int, tuple[tuple[int, ...], set[int]]] = {}
        for segment in analysis.segments:
            for cut, program in enumerate(cutter.programs(segment.index)):
                like = kinds[segment.kind].cuts[cut]
                self._loops[segment.index, cut] = self._loop_of(program.equations)
                whole = len(kinds[segment.kind].cuts) == 1 and self._loops[segment.index, 0] is None
                if whole:
                    sure = self._sure(program.inputs, like.inputs)
                    self._readers[segment.index] = program.equations, sure
                for value, position in self._align(program.inputs, like.inputs):
                    end = End(segment.kind, cut, position, result=False)
                    self._arguments.append((segment.index, value, end))
                for value, position in self._align(program.outputs, like.outputs):
                    end = End(segment.kind, cut, position, result=True)
                    self._made[value] = (segment.index, end)
        self.homes = self._find_homes()

    def find(self) -> Iterator[Crossing]:
        for segment, value, target in self._arguments:
            tensor = self.graph.values[value]
            if not tensor.shape or is_key(tensor.dtype):
                continue
            for origin, shift, carried in self._origins(value):
                found = self._found(origin)
                if found is None:
                    continue
                source_segment, source = found
                if source_segment == segment and not carried and self._linked(source, target):
                    continue  # laid out together
                times = self._times(origin, self._loops[segment, target.cut], shift, carried)
                if not times:  # a loop of one iteration
                    continue
                boundary = Boundary(
                    source,
                    target,
                    tensor.shape,
                    str(tensor.dtype),
                    shift,
                    self._what(origin, source),
                )
                yield Crossing(source_segment, segment, boundary, times)

    def entries(self) -> Iterator[tuple[tuple[int, int], tuple[int, End]]]:
        ends = {(segment, value): end for segment, value, end in self._arguments}
        for segment, (equations, sure) in self._readers.items():
            for equation in equations:
                for operand, value in enumerate(self.graph.equations[equation].inputs):
                    end, found = ends.get((segment, value)), self._found(value)
                    tensor = self.graph.values[value]
                    if end is None or found is None or not tensor.shape or is_key(tensor.dtype):
                        continue
                    if found[0] != segment and value in sure:
                        yield (equation, operand), (segment, end)

    def _found(self, value: int) -> tuple[int, End] | None:
        """Where a tensor comes from. None: from what the update shares, scalars."""
        return self._made.get(value) or self.homes.get(value)

    def _linked(self, source: End, target: End) -> bool:
        kind = self.kinds[target.kind]
        if source.cut == target.cut:
            return True
        if max(source.cut, target.cut) > 1:  # loops in loops: only what the body reads is linked
            links = kind.further[max(source.cut, target.cut) - 2]
            inside = target.cut == 0
            return any(target.position == (n.inside if inside else n.outside) for n in links)
        if target.cut == 0:
            return any(link.inside == target.position for link in kind.slices)
        return any(link.outside == target.position for link in (*kind.slices, *kind.stacks))

    def _loop_of(self, equations: Sequence[int]) -> int | None:
        """The innermost of a program's loops; what it computes of constants may be outside."""
        loops = {forward_loop(self.graph, self.graph.equations[e].loop) for e in equations}
        return max(loops, key=lambda loop: len(self.graph.loop_path(loop)))

    def _times(self, origin: int, loop: int | None, shift: int, carried: bool) -> int:
        """Per step: in every iteration of the loops that both ends are in."""
        graph = self.graph
        if carried and loop is not None:
            return graph.trips(loop) - graph.trips(graph.loops[loop].parent)
        if shift < 0:
            return graph.trips(loop)
        producer = graph.values[origin].producer
        made = forward_loop(graph, None if producer is None else graph.equations[producer].loop)
        around = graph.loop_path(made)
        shared = [inner for inner in graph.loop_path(loop) if inner in around]
        return graph.trips(shared[-1] if shared else None)

    def _what(self, origin: int, source: End) -> str:
        producer = self.graph.values[origin].producer
        if not source.result or producer is None:
            return "argument"
        role = self.graph.equations[producer].role
        return {Role.FORWARD: "activation", Role.BACKWARD: "cotangent"}.get(role, "update")

    def _find_homes(self) -> dict[int, tuple[int, End]]:
        """Where an argument of the step lies as it is wanted."""
        homes: dict[int, tuple[int, End]] = {}
        for updated in (True, False):
            for segment, value, end in self._arguments:
                rounds = self.kinds[end.kind].cuts[end.cut].goes_round.values()
                if (end.position in rounds) is updated:
                    homes.setdefault(value, (segment, end))
        return homes

    def _sure(self, values: Sequence[int], like: Sequence[int]) -> set[int]:
        """Those that `_align` finds the right place for: there are as many of their shape and dtype
        on both sides, and those that other equations made stand among them alike."""

        def sorts(some: Sequence[int]) -> dict[tuple[object, ...], list[bool]]:
            found: dict[tuple[object, ...], list[bool]] = {}
            for value in some:
                made = self.graph.values[value].producer is not None
                found.setdefault(self._sort(value), []).append(made)
            return found

        ours, theirs = sorts(values), sorts(like)
        return {
            value for value in values if ours[self._sort(value)] == theirs.get(self._sort(value))
        }

    def _sort(self, value: int) -> tuple[object, ...]:
        return self.graph.values[value].shape, str(self.graph.values[value].dtype)

    def _align(self, values: Sequence[int], like: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The position of each value in the kind's program, which may have a few more or less: the
        first layer may compute what all share. Of the same shape and dtype, by their order."""
        places: dict[tuple[object, ...], list[int]] = {}
        for position, value in enumerate(like):
            places.setdefault(self._sort(value), []).append(position)
        for value in values:
            if places.get(self._sort(value)):
                yield value, places[self._sort(value)].pop(0)

    def _origins(self, value: int) -> Iterator[tuple[int, int, bool]]:
        """What a tensor was before it entered or left loops: (value, dims added since, whether it
        comes from the iteration before)."""
        producer = self.graph.values[value].producer
        equation = None if producer is None else self.graph.equations[producer]
        if equation is None or equation.primitive not in LOOP_PRIMITIVES:
            yield value, 0, False
            return
        added = {LOOP_SLICE: -1, LOOP_STACK: 1}.get(equation.primitive, 0)
        for origin, shift, carried in self._origins(equation.inputs[0]):
            yield origin, shift + added, carried
        if equation.primitive == LOOP_ENTER:
            exit_ = self.graph.equations[self._carried[equation.index]]
            last = exit_.inputs[0]
            if last in self._made:
                yield last, 0, True
