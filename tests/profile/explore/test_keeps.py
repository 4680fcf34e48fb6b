"""Which levels of what is kept are measured of a leading option."""

from __future__ import annotations

from cfp.profile.explore.keeps import MOST, keeps_ahead
from cfp.profile.explore.scope import Recompute
from cfp.profile.measure.outlook import Ahead
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep
from tests.profile.cases import kinds, model


def layer(*, checkpoint: bool) -> Kind:
    found = kinds(model("gpt", layers=3, checkpoint=checkpoint))
    return max(found, key=lambda kind: kind.times)


def ahead(kind: Kind, binds: bool, recompute: Recompute) -> Ahead:
    return keeps_ahead(kind, Option((0,) * len(kind.strategies)), binds, recompute)


def test_less_is_kept_only_where_memory_binds_and_nobody_forbids_it() -> None:
    kind = layer(checkpoint=False)
    assert ahead(kind, False, Recompute.AUTO) == Ahead(0, 0)
    assert ahead(kind, True, Recompute.AUTO) == Ahead(2, 2 * MOST)
    assert ahead(kind, True, Recompute.NONE) == Ahead(0, 0)
    assert ahead(kind, True, Recompute.AS_WRITTEN) == Ahead(0, 0)


def test_a_checkpoint_of_the_step_does_not_stand_for_our_own_levels() -> None:
    """It asks for the same memory, but a compiler may undo it: where memory binds our own levels
    are measured all the same."""
    kind = layer(checkpoint=True)
    assert Keep.ALL in kind.levels
    assert ahead(kind, False, Recompute.AUTO) == Ahead(1, MOST)
    assert ahead(kind, True, Recompute.AUTO) == Ahead(3, 3 * MOST)
    assert ahead(kind, True, Recompute.NONE) == Ahead(1, MOST)
