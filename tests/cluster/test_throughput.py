"""The targets of `bench.throughput` can be missed, and those that are kept miss none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from bench.clustered import CFP, Cell, Planned, Step
from bench.throughput.__main__ import OUT
from bench.throughput.rows import best_or_tied, read_rows, write_rows
from bench.throughput.targets import targets


def row(cell: Cell, held: float = 1.0, splits: str = "rows", **times_s: float) -> Planned:
    """Runs differ by 5 % up and down: CFP's and those of others not in the same rounds."""
    steps = {}
    for name, t in times_s.items():
        runs_s = (0.95 * t, t, 1.05 * t)
        steps[name] = Step(t, 0.95 * t, 1.05 * t, None, runs_s[::-1] if name == CFP else runs_s)
    return Planned(cell, splits, held, times_s[CFP], 60.0, 9, steps, "by hand")


def missed(*rows: Planned) -> list[str]:
    return [target.what for target in targets(rows) if not target.met]


GPT = {batch: Cell("gpt", batch, "slow_200mbit", "4") for batch in (4, 16)}
FAST = Cell("gpt", 4, "unshaped", "4")


def test_the_kept_results_meet_them() -> None:
    kept = read_rows(OUT.with_suffix(".json"))
    assert [cell.name for cell, found in kept.items() if not best_or_tied(found)] == []
    assert missed(*kept.values()) == []
    assert len(targets([*kept.values()])) == 6


def test_a_tie_is_enough_and_a_loss_is_named() -> None:
    assert missed(row(FAST, cfp=1.05, megatron=1.0)) == []
    lost = row(FAST, cfp=1.2, megatron=1.0)
    assert missed(lost) == ["CFP is the best or ties with it everywhere"]
    assert targets([lost])[0].found == "in 0 of 1 cells, not in unshaped-4-gpt-4"


def test_rounds_that_are_slow_for_all_make_no_tie() -> None:
    found = row(FAST, cfp=1.04, megatron=1.0)
    assert missed(found) == []
    runs_s = {name: step.time_s * np.array([1.0, 1.5, 0.8]) for name, step in found.steps.items()}
    steps = {n: replace(s, runs_s=tuple(runs_s[n].tolist())) for n, s in found.steps.items()}
    assert len(missed(replace(found, steps=steps))) == 1


def test_without_runs_there_is_no_tie() -> None:
    """Rows of before runs were kept."""
    found = row(FAST, cfp=1.01, megatron=1.0)
    steps = {name: replace(step, runs_s=()) for name, step in found.steps.items()}
    assert len(missed(replace(found, steps=steps))) == 1


def test_what_failed_is_no_rival() -> None:
    failed = {"alpa": Step(0.1, 0.1, 0.1, "does not run"), CFP: Step(1.0, 1.0, 1.0, None)}
    planned = Planned(GPT[16], "rows", 1.0, 1.0, 60.0, 9, failed, "by hand")
    assert missed(planned) == []


def test_alpa_is_compared_on_slow_networks_alone() -> None:
    slow, fast = row(GPT[16], cfp=1.0, alpa=1.2), row(FAST, splits="columns", cfp=1.0, alpa=9.0)
    assert [what for what in missed(slow, fast) if "Alpa" in what]
    assert missed(row(GPT[16], cfp=1.0, alpa=1.31), fast) == []


def test_one_plan_for_everything_is_a_miss() -> None:
    few, many = row(GPT[4], 0.2, cfp=1.0), row(GPT[16], cfp=1.0)
    assert missed(few, many) == ["the plan changes with the batch"]
    assert missed(few, row(FAST, cfp=1.0)) == ["the plan changes with the network"]


def test_gpt_must_pick_what_is_right_for_the_batch() -> None:
    few, many = row(GPT[4], 0.25, "columns", cfp=1.0), row(GPT[16], 1.0, cfp=1.0)
    assert missed(few, many) == []
    assert len(missed(row(GPT[4], 1.0, "columns", cfp=1.0), many)) == 1
    assert len(missed(few, row(GPT[16], 0.25, cfp=1.0))) == 1
    assert len(missed(few, row(GPT[16], 1.0, cfp=1.04, alpa=1.0))) == 2  # and Alpa is no slower


def test_rows_are_kept(tmp_path) -> None:
    rows = {cell: row(cell, cfp=1.0, alpa=2.0) for cell in (FAST, *GPT.values())}
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows
