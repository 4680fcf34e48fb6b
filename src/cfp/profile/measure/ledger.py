"""What was asked of the devices, option by option, and what came of it as costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cfp.layouts import AnyMesh, Layouts
from cfp.layouts.state import State
from cfp.profile.measure.campaign import Campaign
from cfp.profile.measure.costs import Cost, SegmentProfile, cost_of, cost_of_two, fixed_part
from cfp.profile.measure.memory import MemoryUse, memory_use
from cfp.profile.measure.sent import ProgramSends, Sent, sent_by
from cfp.profile.programs.boundary import Interfaces
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.requests import Request, Resharding, chained_request, extract_requests
from cfp.segments.keep import Keep


class Ledger:
    """What was measured so far. Lists are by kind. `alone` are options that were also measured one
    at a time."""

    def __init__(
        self,
        campaign: Campaign,
        mesh: AnyMesh,
        kinds: Sequence[Kind],
        interfaces: Interfaces,
    ) -> None:
        self.campaign = campaign
        self.machine = campaign.machine
        self.mesh = mesh
        self.kinds = kinds
        self.interfaces = interfaces
        self.layouts: list[dict[Option, tuple[Layouts, ...]]] = [{} for _ in kinds]
        self.requests: list[dict[Option, list[Request]]] = [{} for _ in kinds]
        self.chained: list[dict[Option, Layouts]] = [{} for _ in kinds]
        self.alone: list[dict[Option, Request]] = [{} for _ in kinds]
        self.reshardings: dict[Resharding, Request] = {}

    def measure(self, options: Iterable[tuple[Kind, Option]]) -> None:
        self.campaign.measure(
            request for kind, option in options for request in self.ask(kind, option)
        )

    def running(self, kind: int) -> list[tuple[Layouts, ...]]:
        """Returns the layouts of the options of a kind that run, fastest first."""
        times_s = {
            option: cost.time_s
            for option in self.layouts[kind]
            if (cost := self.cost(self.kinds[kind], option)) is not None
        }
        return [self.layouts[kind][option] for option in sorted(times_s, key=times_s.__getitem__)]

    def _fixed(self, kind: Kind) -> float:
        known = self.campaign.known
        pairs = [
            (known[one.key], known[self.requests[kind.index][option][0].key], option)
            for option, one in self.alone[kind.index].items()
            if one.key in known and known[one.key].failed is None
        ]
        return fixed_part((one, two, self._between(kind, option)) for one, two, option in pairs)

    def ranked(self, kind: Kind, state: State = State.BLOCK) -> list[Option]:
        """Returns the options measured to the end that keep what the step does, fastest first."""
        costs = {
            option: cost
            for option in self.requests[kind.index]
            if (cost := self.cost(kind, option)) is not None
            if not cost.rough and option.state is state and option.keep is Keep.AS_WRITTEN
        }
        return sorted(costs, key=lambda option: costs[option].time_s)

    def fastest(self, kind: Kind) -> Option:
        """Returns the fastest of those, or the first option of a kind where there are none."""
        return next(iter(self.ranked(kind)), kind.first)

    def step_part_s(self, kind: Kind, option: Option) -> float:
        """Returns what a kind takes in a step where all its occurrences choose this option; 0 where
        it does not run."""
        cost = self.cost(kind, option)
        return 0.0 if cost is None else len(kind.places) * cost.time_s

    def measuring_s(self, kind: Kind, option: Option) -> float:
        """Returns what it took to measure an option: to compile its programs and to run them."""
        known = (self.campaign.known[request.key] for request in self.ask(kind, option))
        return sum(one.compile_s + sum(one.runs_s) for one in known)

    def ask(self, kind: Kind, option: Option) -> list[Request]:
        """Returns the requests of an option: itself, or two in a row."""
        if option not in self.requests[kind.index]:
            self.layouts[kind.index][option] = layouts = kind.layouts(option)
            if kind.chained is None:
                requests = extract_requests(self.machine, self.mesh, kind, option, layouts)
            else:
                self.chained[kind.index][option] = both = kind.chained_layouts(option)
                requests = [chained_request(self.machine, self.mesh, kind, option, both)]
            self.requests[kind.index][option] = requests
        return self.requests[kind.index][option]

    def cost(self, kind: Kind, option: Option) -> Cost | None:
        """Returns the cost of an option; None where it was not measured, or does not run."""
        known = self.campaign.known
        requests = self.requests[kind.index].get(option, [])
        if not requests or any(r.key not in known or known[r.key].failed for r in requests):
            return None
        measured = [known[request.key] for request in requests]
        if kind.chained is None:
            return cost_of(kind, self.layouts[kind.index][option], measured)
        return cost_of_two(
            kind,
            self.chained[kind.index][option],
            measured[0],
            between_s=self._between(kind, option),
            fixed_s=self._fixed(kind),
            alone=self._memory_alone(kind, option),
        )

    def sent(self, kind: Kind, option: Option) -> tuple[Sent, ...] | None:
        """Returns what one occurrence sends in a step under an option; None where that is not
        known."""
        programs = []
        extracts = kind.extracts if kind.chained is None else (kind.chained,)
        for extract, request in zip(extracts, self.requests[kind.index][option], strict=True):
            found = self.campaign.known.get(request.key)
            if found is None or found.collectives is None:
                return None
            times = 0.5  # a chained program is two in a row
            if kind.chained is None:
                times = extract.times / extract.iterations
            programs.append(ProgramSends(extract.graph, times, found.collectives))
        return sent_by(programs)

    def _memory_alone(self, kind: Kind, option: Option) -> MemoryUse | None:
        request = self.alone[kind.index].get(option)
        found = None if request is None else self.campaign.known.get(request.key)
        if found is None or found.memory is None:
            return None
        return memory_use(kind.extracts[0], self.layouts[kind.index][option][0], found.memory)

    def _between(self, kind: Kind, option: Option) -> float:
        """Returns what resharding between two neighbours that choose alike takes, as far as it is
        known."""
        layouts = self.layouts[kind.index][option]
        boundaries = dict.fromkeys(
            crossing.boundary
            for crossing in self.interfaces.crossings
            if crossing.boundary.source.kind == crossing.boundary.target.kind == kind.index
            and crossing.boundary.source.result
        )
        needed = [boundary.resharding(layouts, layouts) for boundary in boundaries]
        return sum(self.resharding_s(resharding) or 0.0 for resharding in needed if resharding)

    def resharding_s(self, resharding: Resharding) -> float | None:
        """Returns the seconds of a resharding; None where it was not measured, or does not run."""
        request = self.reshardings.get(resharding)
        found = None if request is None else self.campaign.known.get(request.key)
        return None if found is None or found.failed is not None else found.time_s

    def segment(self, kind: Kind, finished: bool) -> SegmentProfile:
        """Returns all that is known of a kind."""
        known = self.campaign.known
        found = {option: self.cost(kind, option) for option in self.requests[kind.index]}
        failed: dict[Option, str] = {}
        for option, requests in self.requests[kind.index].items():
            for request in requests:
                why = known[request.key].failed if request.key in known else None
                if why is not None:
                    failed.setdefault(option, why)  # the first of its programs that fails
        ran = {option: cost for option, cost in found.items() if cost is not None}
        told = {option: self.sent(kind, option) for option in ran}
        return SegmentProfile(
            kind=kind,
            costs=ran,
            failed=failed,
            layouts=self.layouts[kind.index],
            finished=finished,
            sent={option: sent for option, sent in told.items() if sent is not None},
        )
