"""Plans to choose from: the search's answers as plans, with what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.layouts import Layout
from cfp.plan import Plan, Predicted
from cfp.plan.assemble import assemble_plan
from cfp.plan.evidence import FrontierPoint, SegmentCost
from cfp.profile import Option, Profile
from cfp.profile.boundary import End, find_homes
from cfp.search import Point, Solution, alternatives, solve
from cfp.search.compose import Composition, compose
from cfp.search.solution import frontier_of

LARGE = 0.2  # of a plan's time: how that is split tells plans apart
NEAR = 1.2  # times the fastest prediction: a plan that may yet be faster


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan that the search proposes."""

    point: Point
    options: tuple[Option, ...]
    plan: Plan


class Candidates:
    """What the search says of a profiled step. `pinned` is how arguments must lie, by position."""

    def __init__(
        self,
        step: Callable[..., Any],
        analysis: Analysis,
        mesh: Mesh,
        profile: Profile,
        *,
        pins: Mapping[str, Any],
        pinned: Mapping[int, Layout],
        sequence: bool,
    ) -> None:
        self.step = step
        self.analysis = analysis
        self.mesh = mesh
        self.profile = profile
        self.kinds = tuple(segment.kind for segment in profile.segments)
        self.pins = pins
        self.sequence = sequence
        graph = analysis.graph
        arguments = len(graph.inputs) + len(graph.outputs)
        self.start_s = profile.base_s + arguments * profile.each_s  # of the whole step
        self._check()
        self.unmet: list[str] = []  # pins that nothing measured agrees with
        self.composition = self._compose(pinned)
        self._solutions: dict[int | None, Solution] = {}

    def _check(self) -> None:
        """Every segment runs in some way."""
        for found in self.profile.segments:
            if found.costs:
                continue
            where = f"segment {found.kind.index} ({found.kind.name})"
            if found.failed:
                why = next(iter(found.failed.values()))
                raise CfpError(f"No way to split {where} runs that was tried; the first: {why}")
            raise CfpError(
                f"The budget ended before {where} was measured: raise it. What was measured is "
                "kept, so the same command goes on."
            )

    def solve(self, limit_bytes: int | None) -> Solution:
        if limit_bytes not in self._solutions:
            self._solutions[limit_bytes] = solve(self.composition.problem, limit_bytes)
        return self._solutions[limit_bytes]

    def smallest(self) -> list[Candidate]:
        """The plan predicted to need least memory; none where nothing was measured."""
        return [self.make(point) for point in self.solve(None).frontier[:1]]

    def best(self, limit_bytes: int | None, count: int) -> list[Candidate]:
        """The fastest plan predicted, and others that may be faster: of what takes most of the time
        they split the blocks, or the training state, in another way. Where too few come near, those
        that differ in anything. None where nothing fits. Options that differ may come to the same
        plan, and count once."""
        composition = self.composition
        of = zip(composition.kinds, composition.options, strict=True)
        numbers: dict[object, int] = {}  # a pinned segment may have fewer options than its kind
        alike = [numbers.setdefault(key, len(numbers)) for key in of]
        by_split = self._ways(lambda option: option.combo)
        by_state = self._ways(lambda option: option.state)
        problem = composition.problem
        others = []
        for ways in (by_split, by_state):
            some = alternatives(problem, limit_bytes, count, alike, ways=ways, share=LARGE)
            others.append([p for p in some if p.time_s <= NEAR * some[0].time_s])
        in_turn = chain.from_iterable(zip_longest(*others))
        points = list(dict.fromkeys(point for point in in_turn if point is not None))
        if len(points) < count:
            points += alternatives(problem, limit_bytes, count, alike)
        found: list[Candidate] = []
        for point in points:
            if len(found) == count:
                break
            made = self.make(point)
            if not any(_same(made.plan, other.plan) for other in found):
                found.append(made)
        return found

    def _ways(self, aspect: Callable[[Option], object]) -> list[list[int]]:
        """A number for each option of each segment; those of one aspect have the same."""
        seen: dict[object, int] = {}
        return [
            [seen.setdefault(aspect(option), len(seen)) for option in options]
            for options in self.composition.options
        ]

    def make(self, point: Point) -> Candidate:
        options = self.composition.chosen(point.choice)
        plan = assemble_plan(
            self.step,
            self.analysis,
            self.mesh,
            self.kinds,
            options,
            name="cfp",
            pins=self.pins,
            sequence=self.sequence,
        )
        return Candidate(point, options, replace(plan, predicted=self.predict(point)))

    def predict(self, point: Point) -> Predicted:
        """Segments and reshardings add up; starting the program is counted as computing."""
        segments = self.segments(point)
        return Predicted(
            time_s=point.time_s + self.start_s,
            compute_s=sum(s.compute_s for s in segments) + self.start_s,
            communication_s=sum(s.communication_s + s.resharding_s for s in segments),
            memory_bytes=self.composition.memory_bytes(point.choice),
        )

    def segments(self, point: Point) -> tuple[SegmentCost, ...]:
        problem = self.composition.problem
        found = []
        for i, option in enumerate(self.composition.chosen(point.choice)):
            profiled = self.profile.segments[self.composition.kinds[i]]
            cost, at = profiled.costs[option], point.choice[i]
            own_s = problem.nodes[i].times_s[at] - cost.time_s  # what goes round its loop
            enters_s = sum(
                edge[point.choice[a], point.choice[b]]
                for (a, b), edge in problem.edges.items()
                if b == i
            )
            found.append(
                SegmentCost(
                    splits=profiled.kind.show(option),
                    compute_s=cost.compute_s,
                    communication_s=cost.communication_s,
                    resharding_s=float(own_s + enters_s),
                    kept_bytes=int(problem.nodes[i].kept_bytes[at]),
                    scratch_bytes=int(problem.nodes[i].scratch_bytes[at]),
                )
            )
        return tuple(found)

    def frontier(self) -> tuple[FrontierPoint, ...]:
        found = self.solve(None).frontier
        needed = [self.composition.memory_bytes(point.choice) for point in found]
        plans = [replace(p, memory_bytes=needs) for p, needs in zip(found, needed, strict=True)]
        return tuple(
            FrontierPoint(point.time_s + self.start_s, point.memory_bytes, self.show(point))
            for point in frontier_of(plans)
        )

    def show(self, point: Point) -> str:
        """`0: rows; 1-12: rows, columns, contracted, rows (zero1); 13: columns`."""
        words = [
            self.kinds[kind].show(option)
            for kind, option in zip(
                self.composition.kinds, self.composition.chosen(point.choice), strict=True
            )
        ]
        return "; ".join(_ranges(words))

    def _compose(self, pinned: Mapping[int, Layout]) -> Composition:
        """Only options that agree with the pins, in segments where some do."""
        homes = find_homes(self.analysis, self.kinds)
        graph = self.analysis.graph
        wanted: dict[int, list[tuple[End, Layout]]] = {}
        for position, layout in pinned.items():
            if graph.inputs[position] in homes:
                segment, end = homes[graph.inputs[position]]
                wanted.setdefault(segment, []).append((end, layout))

        def agrees(segment: int, option: Option) -> bool:
            layouts = self.profile.segments[self.analysis.segments[segment].kind].layouts[option]
            return all(end.layout(layouts) == layout for end, layout in wanted.get(segment, ()))

        met = {
            segment
            for segment in wanted
            if any(
                agrees(segment, option)
                for option in self.profile.segments[self.analysis.segments[segment].kind].costs
            )
        }
        self.unmet = [str(segment) for segment in sorted(wanted.keys() - met)]
        return compose(
            self.analysis,
            self.profile,
            lambda segment, option: segment not in met or agrees(segment, option),
        )


def _same(plan: Plan, other: Plan) -> bool:
    return plan.known("candidate").layouts == other.known("candidate").layouts


def _ranges(words: Sequence[str]) -> list[str]:
    found = []
    for word, group in groupby(range(len(words)), key=lambda i: words[i]):
        at = list(group)
        where = f"{at[0]}" if len(at) == 1 else f"{at[0]}-{at[-1]}"
        found.append(f"{where}: {word}")
    return found
