"""What `cfp profile` prints, whole. `pytest --update-goldens` rewrites tests/golden."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench.profiling.chain import best_chain, chain_cost
from rich.console import Console

from cfp.profile import Cost, Option, Profile, SegmentProfile
from cfp.profile.measure.memory import MemoryUse
from cfp.profile.runners.job import Shares
from cfp.report import profile_to_json, show_profile
from tests.profile.fake_runner import MACHINE, Clock, FakeRunner, clock
from tests.profile.steps import analysed, measured

__all__ = ["clock"]
ANALYSIS = analysed(layers=4)


def cost(number: int, rough: bool = False, traced: bool = True) -> Cost:
    """The costs of the number-th option; no two alike."""
    time_s = 1e-3 * (1 + (7 * number) % 11)
    parts = Shares(time_s / 2, time_s / 4, time_s / 4) if traced else None
    memory = MemoryUse(1024, 2048, 1024, 4096 * (number + 1), 512, 16384 * (number + 1))
    return Cost(time_s, time_s, time_s / 100, parts, memory, rough)


def invented(segment: SegmentProfile, start: int) -> SegmentProfile:
    options = sorted(segment.costs, key=lambda option: option.combo)
    made = {option: cost(start + i, i == 2, i != 1) for i, option in enumerate(options)}
    return replace(segment, costs=made)


@pytest.fixture
def profile(clock: Clock, tmp_path: Path) -> Profile:
    found = measured(FakeRunner(clock), tmp_path, analysis=ANALYSIS)
    times = {what: 1e-4 * (i + 1) for i, what in enumerate(found.reshardings)}
    return replace(
        found,
        machine=MACHINE,
        segments=tuple(invented(s, 3 * i) for i, s in enumerate(found.segments)),
        reshardings=times,
        base_s=4e-4,
        each_s=3e-6,
        seconds=12.0,
    )


def text_of(profile: Profile, top: int = 20) -> str:
    out = io.StringIO()
    show_profile(profile, Console(file=out, width=100, color_system=None), ("x",), top)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_the_whole_report(profile: Profile, golden: Callable[[str, str], None]) -> None:
    segment = profile.segments[0]
    failed = replace(segment, failed={Option((2,)): "out of memory: 12 GiB"})
    shown = replace(profile, segments=(failed, *profile.segments[1:]), missing=("reshardings",))
    golden("profile_plain.txt", text_of(shown))


def test_no_more_rows_than_asked_for(profile: Profile) -> None:
    assert "the fastest 1" in text_of(profile, top=1)
    assert text_of(profile, top=1).count(" ms") < text_of(profile).count(" ms")


def test_every_boundary_has_both_ways_and_every_pair(profile: Profile) -> None:
    document = json.loads(json.dumps(profile_to_json(profile)))
    ways = {(b["source"], b["target"], b["what"]) for b in document["boundaries"]}
    for source, target, what in ways:
        if what == "activation":
            assert (target, source, "cotangent") in ways
    for boundary, entry in zip(profile.boundaries, document["boundaries"], strict=True):
        left, right = (profile.segments[e.kind] for e in (boundary.source, boundary.target))
        pairs = {
            (boundary.source.layout(left.layouts[a]), boundary.target.layout(right.layouts[b]))
            for a in left.costs
            for b in right.costs
        }
        listed = {(tuple(r["source"]), tuple(r["target"])) for r in entry["reshardings"]}
        assert listed == {(a, b) for a, b in pairs if a != b}
        assert all(r["time_s"] is not None for r in entry["reshardings"])


def test_the_best_chain_is_the_best_of_all(profile: Profile) -> None:
    allowed = {segment.kind.index: list(segment.costs) for segment in profile.segments}
    best_s, chosen = best_chain(ANALYSIS, profile, allowed)
    spaces = [allowed[segment.kind] for segment in ANALYSIS.segments]
    costs = {plan: chain_cost(ANALYSIS, profile, plan) for plan in itertools.product(*spaces)}
    assert best_s == pytest.approx(min(costs.values()))
    assert costs[tuple(chosen)] == pytest.approx(best_s)
