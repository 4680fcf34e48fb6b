"""What options are expected to need and to take, where they really do: every saving of
memory adds some time and some scratch of its own, the same for all options or more for some."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from cfp.layouts.state import State
from cfp.profile.explore.expected import LEVELS, Expectations
from cfp.profile.explore.scope import Recompute, Scope
from cfp.profile.explore.streams import split_streams
from cfp.profile.measure.costs import Cost
from cfp.profile.measure.ledger import Ledger
from cfp.profile.measure.memory import MemoryUse, held_bytes, stored_bytes
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep
from tests.profile.cases import kinds, model

ADDED = {State.ZERO1: 0.3, State.FSDP: 0.5, Keep.CONTRACTIONS: 0.2, Keep.INPUTS: 0.4}
SCRATCH = {State.ZERO1: 10, State.FSDP: 500, Keep.CONTRACTIONS: 70, Keep.INPUTS: 90}


@dataclass
class Machine:
    """A ledger of one kind. What only splits blocks takes a second or two."""

    kind: Kind
    more: float = 0.0  # what savings add beyond `ADDED`, at most, by option
    requests: list[dict[Option, None]] = field(default_factory=lambda: [{}])

    @property
    def kinds(self) -> list[Kind]:
        return [self.kind]

    def ranked(self, kind: Kind) -> list[Option]:
        return [o for o in self.requests[0] if o == Option(o.combo)]

    def cost(self, kind: Kind, option: Option) -> Cost | None:
        return self.truth(option) if option in self.requests[0] else None

    def truth(self, option: Option) -> Cost:
        draw = random.Random(str(option.combo))
        time_s = draw.uniform(1.0, 2.0)
        scratch = draw.randrange(1000)
        for saving in (option.state, option.keep):
            time_s += ADDED.get(saving, 0.0) + draw.uniform(0.0, self.more)
            scratch += SCRATCH.get(saving, 0)
        lies = self.kind.layouts(option)[0]
        cut = self.kind.extracts[0]
        parameters, state = stored_bytes(cut, lies)
        held = held_bytes(cut, lies) * (1 if cut.iteration is None else cut.iteration.kept)
        total = parameters + state + held + scratch
        memory = MemoryUse(parameters, state, 0, held, scratch, total)
        return Cost(time_s, time_s, 0.0, None, memory, rough=False)


def layer() -> Kind:
    found = max(kinds(model("gpt", layers=3)), key=lambda kind: kind.times)
    return replace(found, index=0)  # the only one of its ledger


def plain(kind: Kind) -> list[Option]:
    last = len(kind.strategies[0]) - 1
    return [Option((i,) * len(kind.strategies)) for i in (0, last)]


def expectations(machine: Machine, recompute: Recompute = Recompute.AUTO) -> Expectations:
    return Expectations(cast(Ledger, machine), Scope(recompute=recompute))


def seen_once(more: float = 0.0) -> Machine:
    """Every option without its state split and without levels, and of the first of them also each
    of these alone."""
    machine = Machine(layer(), more)
    first, *others = plain(machine.kind)
    savings = [Option(first.combo, state) for state in State]
    savings += [Option(first.combo, keep=keep) for keep in machine.kind.levels]
    machine.requests[0] |= dict.fromkeys([first, *others, *savings])
    return machine


def expected(machine: Machine) -> Iterator[tuple[Option, Cost, Cost]]:
    """Options with split streams are never measured here: what they add is not known."""
    for option, cost in expectations(machine).of(machine.kind).costs.items():
        if not machine.kind.has_streams(option):
            yield option, cost, machine.truth(option)


def test_what_was_seen_once_is_expected_of_all_options() -> None:
    machine = seen_once()
    found = [*expected(machine)]
    assert {option.combo for option, _, _ in found} == {o.combo for o in plain(machine.kind)}
    assert {option.state for option, _, _ in found} == {*State}
    assert {option.keep for option, _, _ in found} == {Keep.AS_WRITTEN, *machine.kind.levels}
    for _, cost, true in found:
        assert cost.time_s == pytest.approx(true.time_s)
        assert cost.memory.total_bytes == true.memory.total_bytes
        assert cost.memory.stored_bytes == true.memory.stored_bytes
        assert cost.memory.activation_bytes == true.memory.activation_bytes


def test_expectations_are_low() -> None:
    """Of what was never seen, and of the least that was seen of others."""
    machine = Machine(layer(), more=0.5)
    machine.requests[0] |= dict.fromkeys(plain(machine.kind))
    for _, cost, true in expected(machine):
        assert cost.time_s <= true.time_s
        assert cost.memory.total_bytes <= true.memory.total_bytes
    before = {option: cost.time_s for option, cost, _ in expected(machine)}
    machine.requests[0] |= seen_once(0.5).requests[0]
    after = {option: cost.time_s for option, cost, _ in expected(machine)}
    assert before.keys() > after.keys()
    assert all(time_s > before[option] for option, time_s in after.items())


def test_computing_more_again_is_expected_to_take_more() -> None:
    """Whatever of it was seen."""
    machine = Machine(layer())
    first = plain(machine.kind)[0]
    machine.requests[0][first] = None
    for seen in (None, Keep.CONTRACTIONS):
        if seen is not None:
            machine.requests[0][Option(first.combo, keep=seen)] = None
        found = {option: cost.time_s for option, cost, _ in expected(machine)}
        found |= {option: machine.truth(option).time_s for option in machine.requests[0]}
        for state in State:
            takes_s = [
                found[Option(first.combo, state, keep)]
                for keep in LEVELS
                if Option(first.combo, state, keep) in found
            ]
            assert takes_s == sorted({*takes_s})


def test_what_is_known_forbidden_or_lies_alike_is_not_expected() -> None:
    machine = seen_once()
    found = expectations(machine).of(machine.kind)
    assert not machine.requests[0].keys() & found.costs.keys()
    lies = [str(found.layouts[option]) for option in found.costs]
    assert len({*lies}) == len(lies)
    written = expectations(machine, Recompute.AS_WRITTEN).of(machine.kind)
    assert {option.keep for option in written.costs} == {Keep.AS_WRITTEN}


def test_streams_are_split_where_they_can_be() -> None:
    machine = Machine(layer())
    combos = (Option(tuple(c)) for c in ((0, 1, 2, 2), (0, 0, 1, 2), (0, 2, 2, 2)))
    some = [option for option in combos if split_streams(machine.kind, option)]
    assert some
    machine.requests[0] |= dict.fromkeys(some)
    found = expectations(machine).of(machine.kind).costs
    split = [option for option in found if machine.kind.has_streams(option)]
    assert {option.state for option in split} == {*State}
    for option in split:
        least = min(machine.truth(base).time_s for base in some)
        assert found[option].time_s >= least


def test_a_segment_with_a_loop_keeps_what_all_its_iterations_keep() -> None:
    (found,) = [k for k in kinds(model("gpt", layers=3, scan=True)) if k.extracts[0].iteration]
    kind = replace(found, index=0)
    iteration = kind.extracts[0].iteration
    assert iteration is not None
    assert iteration.kept == 3
    machine = Machine(kind)
    first = Option((0,) * len(kind.strategies))
    machine.requests[0][first] = None
    costs = expectations(machine).of(kind).costs
    for keep in (Keep.CONTRACTIONS, Keep.INPUTS):
        option = Option(first.combo, keep=keep)
        held = held_bytes(kind.extracts[0], kind.layouts(option)[0])
        assert costs[option].memory.activation_bytes == 3 * held
