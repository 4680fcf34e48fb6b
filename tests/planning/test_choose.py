"""What compiled and measured steps make of the search's answers, with invented ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cfp import choose
from cfp.audit import NO_TIME
from cfp.candidates import Candidate
from cfp.choose import Chooser
from cfp.errors import CfpError
from cfp.plan import Plan, Predicted
from cfp.plan.evidence import MeasuredStep
from cfp.profile.confidence import median_interval
from cfp.profile.turns import OutOfTime
from cfp.search import Node, Point, Problem, Solution, alternatives, solve

# one segment; the faster an option, the more memory it is predicted to need
TIMES = (1.0, 2.0, 3.0, 4.0)
MEMORY = (400, 300, 150, 100)
Real = Callable[[int], MeasuredStep]


class InventedCandidates:
    """The candidates of one segment whose plan number i needs `needs[i]` when compiled."""

    def __init__(self, needs: Sequence[int], donated: bool = True) -> None:
        memory = np.array(MEMORY)
        self.problem = Problem((Node(np.array(TIMES), memory, np.zeros_like(memory)),), {})
        self.needs = needs
        self.analysis = SimpleNamespace(graph=SimpleNamespace(donated={0} if donated else ()))
        self.profile = SimpleNamespace(missing=())
        self.unmet: list[str] = []
        self.limits: list[int | None] = []

    def solve(self, limit: int | None) -> Solution:
        return solve(self.problem, limit)

    def best(self, limit: int | None, count: int) -> list[Candidate]:
        self.limits.append(limit)
        return [self._make(point) for point in alternatives(self.problem, limit, count, [0])]

    def smallest(self) -> list[Candidate]:
        return [self._make(self.solve(None).frontier[0])]

    def show(self, point: Point) -> str:
        return f"option {point.choice[0]}"

    def _make(self, point: Point) -> Candidate:
        predicted = Predicted(point.time_s, point.time_s, 0.0, point.memory_bytes)
        plan = SimpleNamespace(
            predicted=predicted,
            number=point.choice[0],
            memory_bytes=lambda: self.needs[point.choice[0]],
        )
        return Candidate(point, (), cast(Plan, plan))


def step(name: str, seconds: float, memory: int, wide: float = 0.01) -> MeasuredStep:
    """Runs are off by `wide`, up or down, as a bit of the round says: a bit of its own per plan."""
    bit = int(name.removeprefix("predicted ")) - 1
    runs_s = tuple(seconds + (wide if turn >> bit & 1 else -wide) for turn in range(16))
    low_s, high_s = median_interval(runs_s)
    return MeasuredStep(name, None, seconds, low_s, high_s, memory, runs_s=runs_s)


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Chooser, InventedCandidates]]:
    def make(
        needs: Sequence[int] = MEMORY,
        limit: int | None = None,
        count: int = 1,
        takes: Mapping[int, float] | None = None,
        wide: float = 0.01,
        fails: Sequence[int] = (),
        out_of_time: bool = False,
        late: Sequence[int] = (),
        donated: bool = True,
    ) -> tuple[Chooser, InventedCandidates]:
        candidates = InventedCandidates(needs, donated)

        def audit(campaign: Any, plans: Mapping[str, Any]) -> dict[str, MeasuredStep]:
            if out_of_time:
                raise OutOfTime
            found = {}
            for name, plan in plans.items():
                number = plan.number
                if number in (*fails, *late):
                    why = NO_TIME if number in late else "out of memory"
                    found[name] = MeasuredStep(name, None, 0.0, 0.0, 0.0, 0, why)
                else:
                    seconds = (takes or {}).get(number, TIMES[number])
                    found[name] = step(name, seconds, needs[number], wide)
            return found

        monkeypatch.setattr(choose, "audit", audit)
        return Chooser(cast(Any, candidates), cast(Any, None), limit, count, {}), candidates

    return make


Choosing = Callable[..., tuple[Chooser, InventedCandidates]]


def chosen_number(chooser: Chooser) -> int:
    return chooser.choose().candidate.point.choice[0]


def test_the_fastest_prediction_without_a_limit(choosing: Choosing) -> None:
    chooser, candidates = choosing()
    assert chosen_number(chooser) == 0
    assert candidates.limits == [None]


def test_the_fastest_measured_of_the_best_predictions(choosing: Choosing) -> None:
    chooser, _ = choosing(count=3, takes={0: 5.0, 1: 4.0, 2: 3.5, 3: 0.1})
    chosen = chooser.choose()
    assert chosen.candidate.point.choice == (2,), "the fourth was not among them"
    assert [s.name for s in chosen.steps] == ["predicted 3", "predicted 1", "predicted 2"]
    assert chosen.notes == ()


def test_ties_are_called_ties(choosing: Choosing) -> None:
    chooser, _ = choosing(count=3, takes={0: 1.0, 1: 1.05, 2: 2.0}, wide=0.03)
    assert chooser.choose().notes == ("Within noise as fast: predicted 2.",)


def test_what_fits_as_predicted_is_searched_once(choosing: Choosing) -> None:
    chooser, candidates = choosing(limit=320)
    assert chosen_number(chooser) == 1
    assert candidates.limits == [320]


def test_a_step_that_needs_more_than_predicted_makes_it_search_again(choosing: Choosing) -> None:
    chooser, candidates = choosing(needs=(460, 360, 260, 160), limit=320)
    assert chosen_number(chooser) == 2
    assert candidates.limits[:2] == [320, 320 - 60]


def test_a_step_that_needs_less_than_predicted_makes_it_search_again(choosing: Choosing) -> None:
    chooser, candidates = choosing(needs=(320, 220, 120, 20), limit=320)
    assert chosen_number(chooser) == 0
    assert candidates.limits[1] == 320 + 80


def test_what_then_exceeds_is_not_taken(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(360, 220, 120, 20), limit=320)
    assert chosen_number(chooser) == 1


def test_what_is_predicted_not_to_fit_may_fit(choosing: Choosing) -> None:
    chooser, candidates = choosing(needs=(300, 200, 50, 0), limit=90)
    assert chosen_number(chooser) == 2
    assert candidates.limits[:2] == [90, 90 + 100]


def test_without_audit_the_compiler_is_asked(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(460, 360, 260, 160), limit=320, count=0)
    chosen = chooser.choose()
    assert chosen.candidate.point.choice == (2,)
    assert chosen.steps == ()
    assert chosen.notes == ("No full step was run (audit=False): nothing checks the times.",)


def test_out_of_time_is_as_without_audit_and_said(choosing: Choosing) -> None:
    chooser, _ = choosing(needs=(460, 360, 260, 160), limit=320, count=3, out_of_time=True)
    chosen = chooser.choose()
    assert chosen.candidate.point.choice == (2,)
    assert chosen.notes[0].startswith("The budget ended before full steps were run")


def test_of_those_that_were_measured_in_time(choosing: Choosing) -> None:
    """If none was, the prediction counts."""
    chosen = choosing(count=2, late=[0])[0].choose()
    assert chosen.candidate.point.choice == (1,)
    assert [s.failed for s in chosen.steps] == [None, NO_TIME]
    chosen = choosing(count=2, late=[0, 1])[0].choose()
    assert chosen.candidate.point.choice == (0,)
    assert chosen.steps == ()
    assert chosen.notes[0].startswith("The budget ended before full steps were run")


def test_a_step_that_fails_is_not_taken(choosing: Choosing) -> None:
    chooser, _ = choosing(count=2, fails=[0])
    chosen = chooser.choose()
    assert chosen.candidate.point.choice == (1,)
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
