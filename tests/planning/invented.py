"""Profiles without devices: real segments and layouts, invented numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from cfp.analysis import Analysis
from cfp.layouts.state import State
from cfp.profile import Cost, Option, Profile, SegmentProfile
from cfp.profile.measure.memory import MemoryUse
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.kinds import Kind
from cfp.profile.runners.job import Shares
from tests.profile.cases import kinds
from tests.profile.fake_runner import MACHINE

Times = Mapping[Option, float]


def invented_profile(
    analysis: Analysis,
    seed: int = 0,
    options: int = 4,
    times_s: Mapping[int, Times] | None = None,
) -> Profile:
    """Some options of every segment, each with its own cost, and every resharding they may need;
    of the kinds in `times_s` those options, with those times."""
    draw = random.Random(seed)
    found = kinds(analysis)
    segments = tuple(
        _segment(kind, draw, (times_s or {}).get(kind.index) or _drawn(kind, draw, options))
        for kind in found
    )
    interfaces = find_interfaces(analysis, found)
    reshardings = {}
    for boundary in {crossing.boundary: None for crossing in interfaces.crossings}:
        left, right = segments[boundary.source.kind], segments[boundary.target.kind]
        for a, b in itertools.product(left.costs, right.costs):
            needed = boundary.resharding(left.layouts[a], right.layouts[b])
            if needed is not None and needed not in reshardings:
                reshardings[needed] = draw.uniform(1e-4, 5e-4)
    return Profile(
        machine=MACHINE,
        segments=segments,
        interfaces=interfaces,
        reshardings=reshardings,
        base_s=1e-4,
        each_s=1e-6,
        compiled=0,
        loaded=0,
        compile_s=0.0,
        seconds=0.0,
        missing=(),
    )


def _drawn(kind: Kind, draw: random.Random, count: int) -> Times:
    options: dict[Option, None] = {}
    for _ in range(3 * count):
        combo = tuple(draw.randrange(len(choices)) for choices in kind.choices)
        options[Option(combo, draw.choice(list(State)))] = None
    return {option: draw.uniform(1e-3, 4e-3) for option in list(options)[:count]}


def _segment(kind: Kind, draw: random.Random, times_s: Times) -> SegmentProfile:
    costs = {}
    for option, seconds in times_s.items():
        sizes = [draw.randrange(2**20) for _ in range(5)]
        memory = MemoryUse(*sizes, total_bytes=0, update_bytes=sizes[-1] // 3)
        shares = Shares(seconds * 0.5, seconds * 0.3, seconds * 0.2)
        costs[option] = Cost(seconds, seconds, 0.0, shares, memory, rough=False)
    layouts = {option: kind.layouts(option) for option in costs}
    return SegmentProfile(kind, costs, {}, layouts, finished=True, sent={})
