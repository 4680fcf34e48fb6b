"""Full steps, chosen by some rounds and confirmed on others."""

from __future__ import annotations

from pathlib import Path

import cfp
from cfp.profile import Effort
from cfp.profile.api import Manner, open_campaign
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.full_step import confirm_steps, measure_steps
from tests.planning.test_planner import args, step
from tests.profile.cases import mesh


def test_a_plan_is_confirmed_on_rounds_of_its_own(tmp_path: Path) -> None:
    """Compiled once, run twice; and found in the store if asked for the same again."""
    where = mesh((2,))
    plans = {
        "data": cfp.templates.data_parallel(step, *args(), mesh=where).known("test"),
        "state": cfp.templates.zero1(step, *args(), mesh=where).known("test"),
    }
    steps = {name: (bound.analysis, bound.layouts) for name, bound in plans.items()}
    manner = Manner(effort=Effort(repeats=6))
    with open_campaign(where, cache_dir=tmp_path, isolate=False, manner=manner) as campaign:
        with campaign.holding():
            chosen_by = measure_steps(campaign, where, steps)
            compiled = campaign.compiled
            confirmed = confirm_steps(campaign, where, {"data": steps["data"]})
        assert campaign.compiled == compiled == 2
        assert campaign.loaded == 0
        assert len(chosen_by["data"].runs_s) == 6
        assert len(confirmed["data"].runs_s) >= ROUNDS
        assert chosen_by["data"].runs_s != confirmed["data"].runs_s[:6]
        # beside another the rounds are others
        beside = confirm_steps(campaign, where, steps)
        assert beside["data"].runs_s != confirmed["data"].runs_s
        assert len(beside["data"].runs_s) == len(beside["state"].runs_s)
    with open_campaign(where, cache_dir=tmp_path, isolate=False, manner=manner) as campaign:
        again = confirm_steps(campaign, where, steps)
        assert {name: one.runs_s for name, one in again.items()} == {
            name: one.runs_s for name, one in beside.items()
        }
        assert (campaign.compiled, campaign.loaded) == (0, 2)
