"""The tensors that cross from one segment to another, and how they lie on both sides.

A crossing has two ends: the result of one segment, an argument of another. Forward these are
activations, backward cotangents. An argument of the step that several segments read (tied weights,
a mask) lies as the segment that updates it wants, or the first that reads it; the others get it
from there. What goes round a loop crosses from one iteration to the next. Where the ends lie
differently the tensor is resharded, which is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cfp.analysis import Analysis
from cfp.layouts import Layout, Layouts
from cfp.profile.programs.kinds import Kind, Place, shift_dims
from cfp.profile.programs.requests import Resharding
from cfp.segments.program import forward_loop
from cfp.trace import (
    LOOP_ENTER,
    LOOP_EXIT,
    LOOP_PRIMITIVES,
    LOOP_SLICE,
    LOOP_STACK,
    Role,
    is_key,
)


@dataclass(frozen=True, slots=True)
class End:
    """Where a tensor leaves or enters a segment: which extract of its kind, and the position."""

    kind: int
    extract: int
    position: int
    result: bool

    def layout(self, layouts: Sequence[Layouts]) -> Layout:
        """Returns how it lies there, given the layouts of the kind's extracts."""
        lie = layouts[self.extract]
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
        """Returns what must be done for two choices; None where the ends lie alike."""
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


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The kinds of a step, where they occur, and where its segments meet.

    `places[i]` is where the programs of segment i's kind are in the step. `crossings` are the
    tensors that cross, all but scalars and PRNG keys. `homes` says where a tensor that can lie in
    one way only lies as it is wanted: the segment, and where it enters it. An argument of the step
    is at home in the segment that updates it, or the first that reads it; what goes round a loop,
    in the first that reads it.
    """

    kinds: tuple[Kind, ...]
    places: tuple[Place, ...]
    crossings: tuple[Crossing, ...]
    homes: Mapping[int, tuple[int, End]]


def find_interfaces(analysis: Analysis, kinds: Sequence[Kind]) -> Interfaces:
    """Follows every tensor that enters a segment back to where it was made."""
    finder = _Finder(analysis, kinds)
    return Interfaces(tuple(kinds), finder.places, tuple(finder.find()), finder.homes)


class _Finder:
    def __init__(self, analysis: Analysis, kinds: Sequence[Kind]) -> None:
        self.graph = analysis.graph
        self.kinds = kinds
        carries = [pair for loop in self.graph.loops for pair in loop.carries]
        self._exit_of = dict(carries)
        self._enter_of = {exit_: enter for enter, exit_ in carries}
        self._arguments: list[tuple[int, int, End]] = []  # (segment, value, end), in order
        self._made: dict[int, tuple[int, End]] = {}
        self._loops: dict[tuple[int, int], int | None] = {}  # (segment, extract) -> its loop
        places = {place.segment: place for kind in kinds for place in kind.places}
        self.places = tuple(places[segment.index] for segment in analysis.segments)
        for place, segment in zip(self.places, analysis.segments, strict=True):
            for extract in range(len(kinds[segment.kind].extracts)):
                self._note(place, segment.kind, extract)
        self.homes = self._find_homes()

    def _note(self, place: Place, kind: int, extract: int) -> None:
        """Notes what enters and leaves one program of a segment."""
        segment = place.segment
        own = [equation for equation in place.equations[extract] if equation is not None]
        self._loops[segment, extract] = self._loop_of(own)
        for position, value in enumerate(place.arguments[extract]):
            if value is not None:
                self._arguments.append((segment, value, End(kind, extract, position, result=False)))
        for position, value in enumerate(place.results[extract]):
            if value is not None:
                self._made[value] = segment, End(kind, extract, position, result=True)

    def find(self) -> Iterator[Crossing]:
        for segment, value, target in self._arguments:
            tensor = self.graph.values[value]
            if not tensor.shape or is_key(tensor.dtype):
                continue
            for origin, shift, carried in self._origins(value, (segment, target)):
                found = self._found(origin)
                if found is None or found == (segment, target):
                    continue
                source_segment, source = found
                if source_segment == segment and not carried and self._paired(source, target):
                    continue  # laid out together
                boundary = Boundary(
                    source,
                    target,
                    tensor.shape,
                    str(tensor.dtype),
                    shift,
                    self._what(origin),
                )
                times = self._times(origin, self._loops[segment, target.extract], shift, carried)
                yield Crossing(source_segment, segment, boundary, times)

    def _found(self, value: int) -> tuple[int, End] | None:
        """Returns where a tensor comes from; None for scalars, and for what the update shares."""
        return self._made.get(value) or self.homes.get(value)

    def _paired(self, source: End, target: End) -> bool:
        kind = self.kinds[target.kind]
        if source.extract == target.extract:
            return True
        if (
            max(source.extract, target.extract) > 1
        ):  # loops in loops: only what the body reads is paired
            pairs = kind.further[max(source.extract, target.extract) - 2]
            inside = target.extract == 0
            return any(target.position == (n.inside if inside else n.outside) for n in pairs)
        if target.extract == 0:
            return any(pair.inside == target.position for pair in kind.slices)
        return any(pair.outside == target.position for pair in (*kind.slices, *kind.stacks))

    def _loop_of(self, equations: Sequence[int]) -> int | None:
        """Returns the innermost of a program's loops; what it computes of constants may be
        outside."""
        loops = {forward_loop(self.graph, self.graph.equations[e].loop) for e in equations}
        return max(loops, key=lambda loop: len(self.graph.loop_path(loop)))

    def _times(self, origin: int, loop: int | None, shift: int, carried: bool) -> int:
        """Returns how often a tensor crosses per step: in every iteration of the loops that both
        ends are in."""
        graph = self.graph
        if carried or shift < 0:
            return graph.times(loop)
        producer = graph.values[origin].producer
        made = forward_loop(graph, None if producer is None else graph.equations[producer].loop)
        around = graph.loop_path(made)
        shared = [inner for inner in graph.loop_path(loop) if inner in around]
        return graph.times(shared[-1] if shared else None)

    def _what(self, origin: int) -> str:
        producer = self.graph.values[origin].producer
        if producer is None:
            return "argument"
        role = self.graph.equations[producer].role
        return {Role.FORWARD: "activation", Role.BACKWARD: "cotangent"}.get(role, "update")

    def _find_homes(self) -> dict[int, tuple[int, End]]:
        homes: dict[int, tuple[int, End]] = {}
        for updated in (True, False):
            for segment, value, end in self._arguments:
                producer = self.graph.values[value].producer
                if producer is not None and producer not in self._exit_of:
                    continue
                rounds = self.kinds[end.kind].extracts[end.extract].feedback.values()
                if (end.position in rounds) is updated:
                    homes.setdefault(value, (segment, end))
        return homes

    def _origins(self, value: int, reader: tuple[int, End]) -> Iterator[tuple[int, int, bool]]:
        """Yields what a tensor was before it entered or left loops: (value, dims added since,
        whether it comes from the iteration before). What goes round a loop lies as the body takes
        it in: it is brought there before the loop, and at the end of every iteration."""
        producer = self.graph.values[value].producer
        equation = None if producer is None else self.graph.equations[producer]
        if equation is None or equation.primitive not in LOOP_PRIMITIVES:
            yield value, 0, False
            return
        if equation.primitive == LOOP_EXIT:
            (inside,) = self.graph.equations[self._enter_of[equation.index]].outputs
            if inside in self.homes:
                yield inside, 0, False
                return
        if equation.primitive == LOOP_ENTER:
            if self.homes.get(value, reader) != reader:
                yield value, 0, False
                return
            (last,) = self.graph.equations[self._exit_of[equation.index]].inputs
            if last in self._made:
                yield last, 0, True
        added = {LOOP_SLICE: -1, LOOP_STACK: 1}.get(equation.primitive, 0)
        for origin, shift, carried in self._origins(equation.inputs[0], reader):
            yield origin, shift + added, carried
