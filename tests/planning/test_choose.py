"""What compiled and measured steps make of the search's answers, with invented ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cfp.errors import CfpError
from cfp.plan import Plan, Predicted
from cfp.plan.evidence import MeasuredStep
from cfp.planning import choose
from cfp.planning.audit import NO_TIME
from cfp.planning.choose import Chooser, Chosen
from cfp.planning.proposals import Proposal
from cfp.planning.tried import Tried, best_of
from cfp.profile import Option
from cfp.profile.measure import budget as budget_module
from cfp.profile.measure.budget import Budget
from cfp.profile.measure.confidence import median_interval
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.rounds import OutOfTime
from cfp.search import Node, Point, Problem, Solver, alternatives

# one segment; the faster an option, the more memory it is predicted to need
TIMES = (1.0, 2.0, 3.0, 4.0)
MEMORY = (400, 300, 150, 100)
Real = Callable[[int], MeasuredStep]


@dataclass(frozen=True)
class InventedPlan:
    """What choosing asks a plan."""

    predicted: Predicted
    number: int
    mesh: Any
    needs: int

    def memory_bytes(self) -> int:
        return self.needs


class InventedProposals:
    """The proposals of one segment whose plan number i needs `needs[i]` when compiled. The first
    `known` of them were measured."""

    def __init__(self, needs: Sequence[int], donated: bool = True, known: int = 4) -> None:
        memory = np.array(MEMORY[:known])
        node = Node(np.array(TIMES[:known]), memory, np.zeros_like(memory))
        self.solver = Solver(Problem((node,), {}))
        self.needs = needs
        self.devices = 1
        self.analysis = SimpleNamespace(graph=SimpleNamespace(donated={0} if donated else ()))
        self.profile = SimpleNamespace(missing=())
        self.unmet: list[str] = []
        self.limits: list[int | None] = []

    def best(self, limit: int | None, count: int) -> list[Proposal]:
        self.limits.append(limit)
        return [self.make(point) for point in alternatives(self.solver, limit, count, [0])]

    def smallest(self) -> Point:
        return self.solver.frontier().plans[0]

    def show(self, point: Point) -> str:
        return f"option {point.choice[0]}"

    def make(self, point: Point) -> Proposal:
        predicted = Predicted(point.time_s, point.time_s, 0.0, point.memory_bytes)
        number = point.choice[0]
        mesh = SimpleNamespace(size=self.devices)
        plan = InventedPlan(predicted, number, mesh, self.needs[number])
        options = (Option(point.choice),)
        return Proposal(point, options, (), cast(Plan, plan), slack_bytes=0)


class ChooserOfOne(Chooser):
    """Tries one set of proposals, for which nothing more is measured."""

    offered: InventedProposals

    def choose(self) -> Chosen:
        self.select(cast(Any, self.offered), self.limit, last=True)
        return super().choose()


def step(name: str, seconds: float, memory: int, wide: float = 0.01) -> MeasuredStep:
    """Runs are off by `wide` as normal ones are, in an order of its own per plan."""
    normal = [NormalDist().inv_cdf((i + 0.5) / 16) for i in range(16)]
    order = np.random.default_rng(list(name.encode())).permutation(16)
    runs_s = tuple(seconds * (1 + wide * normal[i]) for i in order)
    low_s, high_s = median_interval(runs_s)
    return MeasuredStep(name, None, seconds, low_s, high_s, memory, runs_s=runs_s)


class InventedCampaign:
    """Knows its deadline, and what it was when something was measured."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.network = None
        self.deadline = budget.ends
        self.deadlines: list[float] = []
        self.ran: list[list[int]] = []  # plans that ran in turn, by number

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        usual, self.deadline = self.deadline, deadline
        yield
        self.deadline = usual

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        with self.until(self.budget.ends):
            yield


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Chooser, InventedProposals]]:
    def make(
        needs: Sequence[int] = MEMORY,
        limit: int | None = None,
        count: int = 1,
        takes: Mapping[int, float] | None = None,
        fresh: Mapping[int, float] | None = None,
        wide: float = 0.01,
        fails: Sequence[int] = (),
        out_of_time: bool = False,
        unconfirmed: bool = False,
        late: Sequence[int] = (),
        donated: bool = True,
        others: Mapping[str, Plan | str] | None = None,
        deadline: float = math.inf,
        alone: float | None = None,
        devices: int = 1,
    ) -> tuple[Chooser, InventedProposals]:
        """A template takes as long as its number says; on `fresh` rounds steps may take another
        time. `late` ones are left out by the budget when plans are chosen."""
        proposals = InventedProposals(needs, donated)
        proposals.devices = devices
        beside = sum(isinstance(one, Plan) for one in (others or {}).values())
        budget = Budget(100.0, deadline - 100.0).followed_by(count, 2 + beside)
        campaign = InventedCampaign(budget)

        def measured(name: str, plan: Any, times_s: Mapping[int, float]) -> MeasuredStep:
            number = plan.number
            if number in fails:
                return MeasuredStep(name, None, failed="out of memory")
            memory = needs[number] if number < len(needs) else 1000
            usual_s = TIMES[number] if number < len(TIMES) else float(number)
            return step(name, times_s.get(number, usual_s), memory, wide)

        def audit(campaign: Any, plans: Mapping[str, Any]) -> dict[str, MeasuredStep]:
            campaign.deadlines.append(campaign.deadline)
            if out_of_time:
                raise OutOfTime
            campaign.ran.append([plan.number for plan in plans.values()])
            return {
                name: MeasuredStep(name, None, left_out=NO_TIME)
                if plan.number in late
                else measured(name, plan, takes or {})
                for name, plan in plans.items()
            }

        def confirm(
            campaign: Any, plans: Mapping[str, Any], *, takes_s: float, limit: int | None
        ) -> dict[str, MeasuredStep]:
            campaign.deadlines.append(campaign.deadline)
            if out_of_time or unconfirmed:
                raise OutOfTime
            found = {name: measured(name, p, fresh or takes or {}) for name, p in plans.items()}
            if alone is not None:
                found[ALONE] = step(ALONE, alone, 1000)
            return found

        monkeypatch.setattr(choose, "audit", audit)
        monkeypatch.setattr(choose, "confirm", confirm)
        chooser = ChooserOfOne(cast(Any, campaign), limit, count, others or {})
        chooser.offered = proposals
        return chooser, proposals

    return make


class Template(Plan):
    """A plan that is no proposal, by the seconds its step takes."""

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "number", number)


Choosing = Callable[..., tuple[Chooser, InventedProposals]]


def chosen_number(chooser: Chooser) -> int:
    return chooser.choose().proposal.point.choice[0]


def test_the_fastest_prediction_without_a_limit(choosing: Choosing) -> None:
    chooser, proposals = choosing()
    assert chosen_number(chooser) == 0
    assert proposals.limits == [None]


def test_the_fastest_measured_of_the_best_predictions(choosing: Choosing) -> None:
    chooser, _ = choosing(count=3, takes={0: 5.0, 1: 4.0, 2: 3.5, 3: 0.1})
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (2,), "the fourth was not among them"
    assert [s.name for s in chosen.steps] == ["predicted 3", "predicted 1", "predicted 2"]
    assert chosen.notes == ()


def test_ties_are_called_ties(choosing: Choosing) -> None:
    chooser, _ = choosing(count=3, takes={0: 1.0, 1: 1.06, 2: 2.0}, wide=0.1)
    assert chooser.choose().notes == ("Not told apart from this plan: predicted 2.",)
    chooser, _ = choosing(count=3, takes={0: 1.0, 1: 1.01, 2: 2.0}, wide=0.02, needs=(9, 9, 9, 9))
    assert chooser.choose().notes == ("As fast, within 5%: predicted 2.",)


def test_of_equals_the_one_with_clearly_less_memory(choosing: Choosing) -> None:
    takes = {0: 1.0, 1: 1.01, 2: 1.02}
    chosen = choosing(count=3, takes=takes, wide=0.02, needs=(400, 300, 390, 9))[0].choose()
    assert chosen.proposal.point.choice == (1,)
    assert chosen.steps[0].name == chosen.confirmed[0].name == "predicted 2"
    assert chosen.notes[-1] == (
        "predicted 1 seemed faster by 1.0%, which the rounds do not bear out, and needs 400 B on "
        "each device: this plan needs 300 B."
    )
    # 5 % less is not clearly less
    assert (
        chosen_number(choosing(count=3, takes=takes, wide=0.02, needs=(400, 380, 390, 9))[0]) == 0
    )
    # slower in every round: no equal
    assert chosen_number(choosing(count=2, takes=takes, wide=0.001)[0]) == 0
    # not told apart, being noisy, but slower as it seems by more than equals may be
    noisy = choosing(count=2, takes={0: 1.0, 1: 1.1}, wide=0.2)[0]
    assert noisy.choose().notes == ("Not told apart from this plan: predicted 2.",)
    assert chosen_number(noisy) == 0


def test_what_the_rounds_show_to_be_slower_is_not_taken_for_its_memory() -> None:
    """The second plan needs least, and the rounds do not tell it apart from the first, whose times
    vary. They do from the third, whose times do not."""
    proposals = InventedProposals(needs := (400, 300, 390, 9))
    points = alternatives(proposals.solver, None, 3, [0])
    runs_s = ((0.9, 1.03) * 8, (1.0,) * 16, (0.97,) * 16)
    tried = [
        Tried(
            proposals.make(point),
            MeasuredStep(str(i), None, median(runs), min(runs), max(runs), needs[i], runs_s=runs),
            needs[i],
            wave=1,
        )
        for i, (point, runs) in enumerate(zip(points, runs_s, strict=True))
    ]
    assert best_of(tried[:2]) == (tried[1], tried[0])
    assert best_of(tried) == (tried[0], tried[0])


def test_what_is_reported_is_of_fresh_rounds(choosing: Choosing) -> None:
    """The fastest of three by luck is what it is when it runs again; templates run beside it then,
    and not before."""
    others = {"megatron": cast(Plan, Template(7)), "fsdp": "it does not divide"}
    chooser, _ = choosing(
        count=3, takes={0: 1.0, 1: 0.9, 2: 1.0}, fresh={1: 1.0, 7: 0.8}, others=others
    )
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (1,)
    assert [s.name for s in chosen.steps] == ["predicted 2", "predicted 1", "predicted 3"]
    assert [s.name for s in chosen.confirmed] == ["predicted 2", "megatron", "fsdp"]
    assert (chosen.steps[0].measured_s, chosen.confirmed[0].measured_s) == (0.9, 1.0)
    assert chosen.confirmed[2].why_not() == "does not run: it does not divide"
    assert chosen.notes == ("Faster than this plan: megatron.",)


def test_time_is_left_for_fresh_rounds(choosing: Choosing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    others = {"megatron": cast(Plan, Template(7)), "fsdp": "it does not divide"}
    chooser, _ = choosing(count=3, deadline=150.0, others=others)
    chooser.choose()
    # three steps, then the chosen one, one device alone and a template
    assert cast(Any, chooser.campaign).deadlines == [125.0, 150.0]


def test_one_device_alone_may_be_faster_and_then_it_is_said(choosing: Choosing) -> None:
    chosen = choosing(alone=0.5, devices=4)[0].choose()
    assert [s.name for s in chosen.confirmed] == ["predicted 1", ALONE]
    assert chosen.notes == (
        "One device alone is faster than this mesh, 2.00 times: the step is too small to be split "
        "for its speed. Give it a larger batch, or run it on one device.",
    )
    assert choosing(alone=2.0, devices=4)[0].choose().notes == ()
    assert choosing(alone=1.0, devices=4)[0].choose().notes == (f"As fast, within 5%: {ALONE}.",)
    late = choosing(devices=4, unconfirmed=True)[0].choose().confirmed
    assert [s.why_not() for s in late] == [f"not run: {NO_TIME}"] * 2


def test_without_fresh_rounds_it_is_said(choosing: Choosing) -> None:
    others = {"megatron": cast(Plan, Template(7))}
    chosen = choosing(count=2, unconfirmed=True, others=others)[0].choose()
    assert [s.why_not() for s in chosen.confirmed] == [f"not run: {NO_TIME}"] * 2
    assert all(s.measured_s is None and s.memory_bytes is None for s in chosen.confirmed)
    assert chosen.notes[-1].startswith("The budget ended before the plan ran on fresh rounds")


def test_steps_of_other_rounds_are_not_compared_run_by_run(choosing: Choosing) -> None:
    """The second search's steps did not run in turn with the first one's."""
    chooser, _ = choosing(needs=(460, 360, 260, 160), limit=320, count=2)
    chosen = chooser.choose()
    assert chosen.steps[0].name == "predicted 2"
    runs = {s.name: len(s.runs_s) for s in chosen.steps}
    assert runs == {"predicted 2": 16, "predicted 1": 0, "predicted 3": 16}


def test_what_fits_as_predicted_is_searched_once(choosing: Choosing) -> None:
    chooser, proposals = choosing(limit=320)
    assert chosen_number(chooser) == 1
    assert proposals.limits == [320]


def test_a_step_that_needs_more_than_predicted_makes_it_search_again(choosing: Choosing) -> None:
    chooser, proposals = choosing(needs=(460, 360, 260, 160), limit=320)
    assert chosen_number(chooser) == 2
    assert proposals.limits[:2] == [320, 320 - 60]


def test_what_is_predicted_counts_what_earlier_steps_needed(choosing: Choosing) -> None:
    """The second plan is predicted to need 150, and the first one needed 60 more than predicted.
    What was predicted of the first one stands, also where it runs again."""
    chooser, _ = choosing(needs=(460, 360, 215, 160), limit=320, count=3)
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (2,)
    assert chosen.proposal.predicted_bytes == 150 + 60
    assert chosen.notes[-1] == (
        "The full step of an earlier proposal needs 60 B more on each device than its segments add "
        "up to: predicted memory counts that."
    )
    chooser, _ = choosing(needs=(390, 290, 140, 90), limit=320, count=3)
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (1,)
    assert chosen.proposal.predicted_bytes == 300
    assert not any("earlier proposal" in note for note in chosen.notes)
    chooser, _ = choosing(needs=(460, 360, 390, 350), limit=320)
    with pytest.raises(CfpError, match="the smallest needs 350 B"):
        chooser.choose()


def test_more_is_measured_for_what_plans_really_need(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best prediction misses the limit by 60. What leads within as much less is another plan,
    whose option is only measured then."""
    needs, limit = (460, 360, 210, 160), 320
    chooser, proposals = choosing(needs=needs, limit=limit)
    few = cast(Any, InventedProposals(needs, known=2))
    assert chooser.select(few, limit, last=False) == limit - 60
    assert chooser.select(cast(Any, proposals), limit - 60, last=False) is None
    assert Chooser.choose(chooser).proposal.options == (Option((2,)),)
    assert cast(Any, chooser.campaign).ran == [[1], [2]]


def test_without_time_to_measure_more_the_search_goes_on(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where nothing fits then, measuring more is all that is left."""
    monkeypatch.setattr(Budget, "profiled", 0.0)
    chooser, proposals = choosing(needs=(460, 360, 260, 160), limit=320)
    assert chooser.select(cast(Any, proposals), 320, last=False) is None
    assert Chooser.choose(chooser).proposal.options == (Option((2,)),)
    needs = (460, 360, 390, 350)
    chooser, proposals = choosing(needs=needs, limit=320)
    assert chooser.select(cast(Any, proposals), 320, last=False) == 320 - 250
    assert chooser.select(cast(Any, proposals), 320 - 250, last=True) is None
    with pytest.raises(CfpError, match="No plan fits"):
        Chooser.choose(chooser)


def test_a_miss_by_a_few_bytes_makes_it_search_again(choosing: Choosing) -> None:
    chooser, proposals = choosing(needs=(401, 301, 151, 101), limit=300)
    assert chosen_number(chooser) == 2
    assert proposals.limits[:2] == [300, 300 - 3], "by a hundredth at least, or it takes too long"


def test_where_nothing_else_fits_the_smallest_is_tried(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "ATTEMPTS", 2)
    assert chosen_number(choosing(needs=(900, 310, 305, 290), limit=300)[0]) == 3
    assert chosen_number(choosing(fails=[0])[0]) == 3, "the fastest may be out of memory"


def test_a_step_that_needs_less_than_predicted_makes_it_search_again(choosing: Choosing) -> None:
    chooser, proposals = choosing(needs=(320, 220, 120, 20), limit=320)
    assert chosen_number(chooser) == 0
    assert proposals.limits[1] == 320 + 80


def test_where_the_best_misses_the_limit_the_others_are_not_run(choosing: Choosing) -> None:
    """Far from the limit all run at once."""
    for limit, waves in ((320, [[1], [2, 3]]), (10_000, [[0, 1, 2]])):
        chooser, _ = choosing(needs=(460, 360, 260, 160), limit=limit, count=3)
        chooser.choose()
        assert cast(Any, chooser.campaign).ran == waves


def test_what_then_exceeds_is_not_taken(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(360, 220, 120, 20), limit=320)
    assert chosen_number(chooser) == 1


def test_what_is_predicted_not_to_fit_may_fit(choosing: Choosing) -> None:
    chooser, proposals = choosing(needs=(300, 200, 50, 0), limit=90)
    assert chosen_number(chooser) == 2
    assert proposals.limits[:2] == [90, 90 + 100]


def test_without_audit_the_compiler_is_asked(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(460, 360, 260, 160), limit=320, count=0)
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (2,)
    assert chosen.steps == ()
    assert chosen.notes == (
        "No full step was run (audit=False): nothing checks the times.",
        "The full step of an earlier proposal needs 60 B more on each device than its segments add "
        "up to: predicted memory counts that.",
    )


def test_out_of_time_is_as_without_audit_and_said(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(460, 360, 260, 160), limit=320, count=3, out_of_time=True)
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (2,)
    assert chosen.notes[0].startswith("The budget ended before full steps were run")


def test_what_nobody_could_check_fits_as_predicted(choosing: Choosing) -> None:
    """On a stand-in only the worker compiles, and the budget left it no time."""
    for limit, fits in ((320, True), (90, False)):
        chooser, _ = choosing(limit=limit, count=3, out_of_time=True)
        cast(Any, chooser.campaign).network = object()
        if fits:
            assert chosen_number(chooser) == 1
            continue
        with pytest.raises(CfpError, match=r"No plan fits 90 B per device: .* needs 100 B"):
            chooser.choose()


def test_of_those_that_were_measured_in_time(choosing: Choosing) -> None:
    """The prediction counts if none was measured."""
    chosen = choosing(count=2, late=[0])[0].choose()
    assert chosen.proposal.point.choice == (1,)
    assert [s.left_out for s in chosen.steps] == [None, NO_TIME]
    chosen = choosing(count=2, late=[0, 1])[0].choose()
    assert chosen.proposal.point.choice == (0,)
    assert chosen.steps == ()
    assert chosen.confirmed[0].ran
    assert chosen.notes[0].startswith("The budget ended before full steps were compared")


def test_a_step_that_fails_is_not_taken(choosing: Choosing) -> None:
    chooser, _ = choosing(count=2, fails=[0])
    chosen = chooser.choose()
    assert chosen.proposal.point.choice == (1,)
    assert [s.failed for s in chosen.steps] == [None, "out of memory"]


@pytest.mark.parametrize(
    ("needs", "limit", "donated", "expected"),
    [
        (
            MEMORY,
            50,
            True,
            r"No plan fits 50 B per device: the smallest needs 100 B \(option 3\)\.",
        ),
        # what the compiler says counts
        ((460, 360, 260, 160), 110, True, r"the smallest needs 160 B \(option 3\)\. Raise mem"),
        (MEMORY, 50, False, r"or let the step donate its state"),
    ],
)
def test_nothing_fits(
    choosing: Choosing, needs: Sequence[int], limit: int, donated: bool, expected: str
) -> None:
    chooser, _ = choosing(needs=needs, limit=limit, donated=donated)
    with pytest.raises(CfpError, match=expected):
        chooser.choose()


def test_nothing_that_runs(choosing: Choosing) -> None:
    chooser, _ = choosing(fails=range(4))
    with pytest.raises(CfpError, match="None of the plans runs: out of memory"):
        chooser.choose()


@pytest.mark.parametrize(
    ("gain", "tried"), [(0.6, ["predicted 2", "predicted 1"]), (0.4, ["predicted 1"])]
)
def test_memory_left_over_is_used_where_that_gains(
    choosing: Choosing, monkeypatch: pytest.MonkeyPatch, gain: float, tried: list[str]
) -> None:
    """The plan needs less than predicted, so that one with more may fit, which is predicted to take
    half of its time."""
    monkeypatch.setattr(choose, "GAIN", gain)
    chooser, _ = choosing(needs=(300, 200, 100, 50), limit=310)
    assert [step.name for step in chooser.choose().steps] == tried
