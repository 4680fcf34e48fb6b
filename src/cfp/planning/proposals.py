"""Plans to choose from: the search's answers as plans, with what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from typing import Any

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Layout
from cfp.plan import Plan, Predicted
from cfp.plan.assemble import assemble_plan
from cfp.plan.evidence import FrontierPoint, SegmentCost
from cfp.profile import Option, Profile
from cfp.profile.programs.boundary import End
from cfp.search import Point, Solver, alternatives
from cfp.search.compose import Composition, compose
from cfp.search.problem import frontier_of

LARGE = 0.2  # of a plan's time: how that is split tells plans apart
NEAR = 1.2  # times the fastest prediction: a plan that may yet be faster


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A plan that the search proposes: an option for each segment, and what each of them costs. No
    plan that needs `slack_bytes` less than the limit it was searched for is predicted to be faster
    than the first one proposed for that limit. The plan's predicted memory counts `beyond_bytes`:
    what the full step of a plan tried before needs beyond what its segments add up to."""

    point: Point
    options: tuple[Option, ...]
    segments: tuple[SegmentCost, ...]
    plan: Plan
    slack_bytes: int
    beyond_bytes: int = 0

    @property
    def predicted_bytes(self) -> int:
        """Returns the memory that the plan is predicted to need."""
        assert self.plan.predicted is not None
        return self.plan.predicted.memory_bytes

    def counting(self, beyond_bytes: int) -> Proposal:
        """Returns the proposal with another number of bytes beyond what its segments add up to."""
        assert self.plan.predicted is not None
        memory_bytes = self.predicted_bytes - self.beyond_bytes + beyond_bytes
        predicted = replace(self.plan.predicted, memory_bytes=memory_bytes)
        return replace(
            self, plan=replace(self.plan, predicted=predicted), beyond_bytes=beyond_bytes
        )


class Proposals:
    """The plans that the search proposes for a profiled step. `pinned` is the layout that arguments
    must have, by position."""

    def __init__(
        self,
        step: Callable[..., Any],
        analysis: Analysis,
        mesh: AnyMesh,
        profile: Profile,
        *,
        pins: Mapping[str, Any],
        pinned: Mapping[int, Layout],
    ) -> None:
        self.step = step
        self.analysis = analysis
        self.mesh = mesh
        self.profile = profile
        self.kinds = tuple(segment.kind for segment in profile.segments)
        self.pins = pins
        graph = analysis.graph
        arguments = len(graph.inputs) + len(graph.outputs)
        self.start_s = profile.base_s + arguments * profile.each_s  # of the whole step
        self._check()
        self.unmet: list[str] = []  # pins that nothing measured agrees with
        self.composition = self._compose(pinned)
        self.solver = Solver(self.composition.problem)

    def _check(self) -> None:
        """Raises unless every segment runs in some way."""
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

    def smallest(self) -> Point | None:
        """Returns the plan predicted to need least memory; None where nothing was measured."""
        return next(iter(self.solver.frontier().plans), None)

    def best(self, limit_bytes: int | None, count: int) -> list[Proposal]:
        """Returns the fastest plan predicted, and others that may be faster: they split the blocks
        of the most expensive segments, or their training state, in another way. Where too few are
        predicted to be nearly as fast, plans that differ in anything follow. It is empty where
        nothing fits. Options that differ may come to the same plan, which counts once."""
        composition = self.composition
        of = zip(composition.kinds, composition.options, strict=True)
        numbers: dict[object, int] = {}  # a pinned segment may have fewer options than its kind
        alike = [numbers.setdefault(key, len(numbers)) for key in of]
        aspects = [self._ways(lambda option: option.combo), self._ways(lambda option: option.state)]
        by_keep = self._ways(lambda option: option.keep)
        if any(ways for found in by_keep for ways in found):  # all keep the same in most steps
            aspects.append(by_keep)
        fastest = self.solver.fastest(limit_bytes)
        if fastest is None:
            return []
        others = []
        for ways in aspects:
            some = alternatives(self.solver, limit_bytes, count, alike, ways=ways, share=LARGE)
            others.append([p for p in some if p.time_s <= NEAR * some[0].time_s])
        in_turn = chain.from_iterable(zip_longest(*others))
        points = list(dict.fromkeys(point for point in in_turn if point is not None))
        if len(points) < count:
            points += alternatives(self.solver, limit_bytes, count, alike)
        found: list[Proposal] = []
        for point in points:
            if len(found) == count:
                break
            made = self.make(point, fastest.slack_bytes)
            if not any(_same(made.plan, other.plan) for other in found):
                found.append(made)
        return found

    def _ways(self, aspect: Callable[[Option], object]) -> list[list[int]]:
        """Returns a number for each option of each segment; options of one aspect have the same."""
        seen: dict[object, int] = {}
        return [
            [seen.setdefault(aspect(option), len(seen)) for option in options]
            for options in self.composition.options
        ]

    def make(self, point: Point, slack_bytes: int = 0) -> Proposal:
        """Returns the plan of a point that a search with such a slack proposes."""
        options = self.composition.chosen(point.choice)
        plan = assemble_plan(
            self.step,
            self.analysis,
            self.mesh,
            self.profile.interfaces,
            options,
            name="cfp",
            pins=self.pins,
        )
        segments = self._segments(point)
        plan = replace(plan, predicted=self._predicted(point, segments))
        return Proposal(point, options, segments, plan, slack_bytes)

    def _predicted(self, point: Point, segments: Sequence[SegmentCost]) -> Predicted:
        """Returns what a plan is predicted to cost: segments and reshardings add up, and starting
        the program counts as computing. Where the shares of one segment were not measured, those of
        the step are not known."""
        compute = [s.compute_s for s in segments if s.compute_s is not None]
        sent = [s.communication_s for s in segments if s.communication_s is not None]
        resharding_s = sum(s.resharding_s for s in segments)
        return Predicted(
            time_s=point.time_s + self.start_s,
            compute_s=sum(compute) + self.start_s if len(compute) == len(segments) else None,
            communication_s=sum(sent) + resharding_s if len(sent) == len(segments) else None,
            memory_bytes=self.composition.memory_bytes(point.choice),
        )

    def _segments(self, point: Point) -> tuple[SegmentCost, ...]:
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
                    segment_s=cost.time_s,
                    compute_s=cost.compute_s,
                    communication_s=cost.communication_s,
                    resharding_s=float(own_s + enters_s),
                    kept_bytes=int(problem.nodes[i].kept_bytes[at]),
                    scratch_bytes=int(problem.nodes[i].scratch_bytes[at]),
                )
            )
        return tuple(found)

    def frontier(self, beyond_bytes: int = 0) -> tuple[FrontierPoint, ...]:
        """Returns the fastest plan for each amount of memory, as `Proposal.counting` counts it."""
        found = self.solver.frontier().plans
        needed = [self.composition.memory_bytes(point.choice) + beyond_bytes for point in found]
        plans = [replace(p, memory_bytes=needs) for p, needs in zip(found, needed, strict=True)]
        return tuple(
            FrontierPoint(point.time_s + self.start_s, point.memory_bytes, self.show(point))
            for point in frontier_of(plans)
        )

    def show(self, point: Point) -> str:
        """Returns `0: batch; 1-12: batch, output features, input features (zero1); 13: batch`."""
        words = [
            self.kinds[kind].show(option)
            for kind, option in zip(
                self.composition.kinds, self.composition.chosen(point.choice), strict=True
            )
        ]
        return "; ".join(_ranges(words))

    def _compose(self, pinned: Mapping[int, Layout]) -> Composition:
        """Returns the problem of the options that agree with the pins, in segments where some
        do."""
        homes = self.profile.interfaces.homes
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
    return plan.known("proposal").layouts == other.known("proposal").layouts


def _ranges(words: Sequence[str]) -> list[str]:
    found = []
    for word, group in groupby(range(len(words)), key=lambda i: words[i]):
        at = list(group)
        where = f"{at[0]}" if len(at) == 1 else f"{at[0]}-{at[-1]}"
        found.append(f"{where}: {word}")
    return found
