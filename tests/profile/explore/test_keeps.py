"""Which levels keep clearly less than the one before."""

from __future__ import annotations

import pytest

from cfp.profile.explore.keeps import CLEARLY_LESS, less_kept
from cfp.profile.measure.memory import held_bytes
from cfp.profile.programs.kinds import Option
from cfp.segments.keep import Keep
from tests.profile.cases import kinds, model


@pytest.mark.parametrize("checkpoint", [False, True])
def test_every_level_of_a_layer_keeps_clearly_less(checkpoint: bool) -> None:
    """A checkpoint of the step asks for the same memory as our own levels, but a compiler may undo
    it: they are levels all the same."""
    kind = max(kinds(model("gpt", layers=3, checkpoint=checkpoint)), key=lambda kind: kind.times)
    assert (Keep.ALL in kind.levels) is checkpoint
    most = Option((0,) * len(kind.strategies), keep=Keep.ALL if checkpoint else Keep.AS_WRITTEN)
    found = [*less_kept(kind, Option(most.combo))]
    assert found == [Keep.CONTRACTIONS, Keep.INPUTS]
    held = [
        held_bytes(kind.extracts[0], kind.layouts(Option(most.combo, keep=keep))[0])
        for keep in (most.keep, *found)
    ]
    assert held[1] <= CLEARLY_LESS * held[0]
    assert held[2] <= CLEARLY_LESS * held[1]
