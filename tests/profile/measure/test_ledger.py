"""What the ledger makes of measurements: costs, and why options do not run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from cfp.analysis import Analysis
from cfp.errors import CfpError
from cfp.planning.proposals import Proposals
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.measurement import Measurement
from cfp.profile.profile import Profile
from cfp.profile.programs.boundary import Interfaces, find_interfaces
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import Request, Resharding, resharding_request
from tests.profile.cases import kinds, mesh, model
from tests.profile.fake_runner import MACHINE, MEMORY


@dataclass
class Known:
    """A campaign that is over."""

    machine: Machine = MACHINE
    known: dict[str, Measurement] = field(default_factory=dict)

    def add(self, request: Request, seconds: float = 1.0, failed: str | None = None) -> None:
        runs = () if failed else (seconds,)
        memory = None if failed else MEMORY
        self.known[request.key] = Measurement(
            request.key, request.name, runs, memory=memory, failed=failed
        )


def ledger_of(analysis: Analysis) -> tuple[Known, Ledger]:
    known: Any = Known()
    found = kinds(analysis)
    return known, Ledger(known, mesh((4,)), found, find_interfaces(analysis, found))


def between(ledger: Ledger, kind: Kind, option: Option) -> list[Resharding]:
    """Returns, by the definition, what must be done from one occurrence to the next."""
    layouts = kind.layouts(option)
    boundaries = {
        crossing.boundary
        for crossing in ledger.interfaces.crossings
        if crossing.boundary.source.kind == crossing.boundary.target.kind == kind.index
        and crossing.boundary.source.result
    }
    found = [boundary.resharding(layouts, layouts) for boundary in boundaries]
    return [resharding for resharding in found if resharding is not None]


def test_resharding_between_two_in_a_row_is_not_theirs() -> None:
    known, ledger = ledger_of(model("gpt", layers=4))
    kind = ledger.kinds[1]
    assert kind.chained is not None
    every = itertools.product(*(range(len(choices)) for choices in kind.strategies))
    option = next(option for option in map(Option, every) if between(ledger, kind, option))
    needed = between(ledger, kind, option)
    (request,) = ledger.ask(kind, option)
    known.add(request, 10.0)
    before = ledger.cost(kind, option)
    assert before is not None
    assert before.time_s == 5.0  # nothing is known of it yet
    for resharding in needed:
        ledger.reshardings[resharding] = resharding_request(MACHINE, ledger.mesh, resharding)
        known.add(ledger.reshardings[resharding], 2.0)
    after = ledger.cost(kind, option)
    assert after is not None
    assert after.time_s == pytest.approx((10.0 - 2.0 * len(needed)) / 2)


@pytest.mark.parametrize("which", [0, 1])
def test_why_one_of_two_programs_fails_is_not_forgotten(which: int) -> None:
    """A loop's body and what runs once: neither's success hides that the other does not run."""
    known, ledger = ledger_of(model("llama", scan=True))
    (kind,) = (kind for kind in ledger.kinds if len(kind.extracts) == 2)
    option = Option((0,) * len(kind.strategies))
    for i, request in enumerate(ledger.ask(kind, option)):
        known.add(request, failed="out of memory" if i == which else None)
    found = ledger.segment(kind, finished=True)
    assert found.costs == {}
    assert found.failed == {option: "out of memory"}


def test_of_two_reasons_the_first_is_told() -> None:
    known, ledger = ledger_of(model("llama", scan=True))
    (kind,) = (kind for kind in ledger.kinds if len(kind.extracts) == 2)
    option = Option((0,) * len(kind.strategies))
    for reason, request in zip(("first", "second"), ledger.ask(kind, option), strict=True):
        known.add(request, failed=reason)
    assert ledger.segment(kind, finished=True).failed == {option: "first"}


def test_a_step_that_does_not_run_is_not_told_that_the_budget_ended() -> None:
    analysis = model("llama", scan=True)
    known, ledger = ledger_of(analysis)
    for kind in ledger.kinds:
        body, *once = ledger.ask(kind, Option((0,) * len(kind.strategies)))
        known.add(body, failed="out of memory" if once else None)
        for request in once:
            known.add(request)
    profile = Profile(
        machine=MACHINE,
        segments=tuple(ledger.segment(kind, finished=True) for kind in ledger.kinds),
        interfaces=Interfaces((), (), (), {}),
        reshardings={},
        base_s=0.0,
        each_s=0.0,
        compiled=0,
        loaded=0,
        compile_s=0.0,
        seconds=0.0,
        missing=(),
    )
    with pytest.raises(CfpError, match=r"No way to split segment 1 .* out of memory"):
        Proposals(lambda: None, analysis, mesh((4,)), profile, pins={}, pinned={})
