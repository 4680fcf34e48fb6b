"""These stages measure what options cost beside one another: reshardings, and neighbours in a row.

A resharding is measured for every pair of layouts that options on the two sides of a boundary may
need, those of fast options first. A segment that follows itself is measured as two in a row, and
the fastest options alone, too: the difference is what the second one adds (`measure.costs`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cfp.layouts import Layout, Layouts
from cfp.layouts.state import State
from cfp.profile.explore.forecast import ALONE
from cfp.profile.measure.ledger import Ledger
from cfp.profile.programs.requests import Resharding, extract_requests, resharding_request

SMALL = 16  # reshardings compiled and run in turn: next to nothing each


def measure_reshardings(ledger: Ledger, leading: int | None = None) -> None:
    """Measures every pair of layouts that options on the two sides of a boundary may need, those of
    fast options first. With `leading`, only that many layouts of the fastest options count."""
    wanted: list[tuple[int, Resharding]] = []
    for boundary in dict.fromkeys(crossing.boundary for crossing in ledger.crossings):
        sides = []
        for end in (boundary.source, boundary.target):
            lie: dict[Layout, tuple[Layouts, ...]] = {}
            for found in ledger.running(end.kind):
                lie.setdefault(end.layout(found), found)
            sides.append(list(lie.values())[:leading])
        for (i, left), (j, right) in itertools.product(*map(enumerate, sides)):
            needed = boundary.resharding(left, right)
            if needed is not None:
                wanted.append((i + j, needed))
    requests = ledger.reshardings
    for _, needed in sorted(wanted, key=lambda one: one[0]):
        if needed not in requests:
            requests[needed] = resharding_request(ledger.machine, ledger.mesh, needed)
    with ledger.campaign.trying(wave=SMALL):
        ledger.campaign.measure(requests.values())


def measure_alone(ledger: Ledger, states: Iterable[State]) -> None:
    """Measures the fastest options of each state alone, of the segments that were measured as two
    in a row."""
    states = tuple(states)
    for kind in ledger.kinds:
        if kind.chained is not None:
            fastest = (ledger.ranked(kind, state)[:ALONE] for state in states)
            for option in itertools.chain(*fastest):
                layouts = ledger.layouts[kind.index][option]
                (request,) = extract_requests(ledger.machine, ledger.mesh, kind, option, layouts)
                ledger.alone[kind.index][option] = request
    ledger.campaign.measure(request for found in ledger.alone for request in found.values())
