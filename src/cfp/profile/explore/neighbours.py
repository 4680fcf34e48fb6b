"""These stages measure what options cost beside one another: reshardings, and neighbours in a row.

A resharding is measured for every pair of layouts that options on the two sides of a boundary may
need, those of fast options first. A segment that follows itself is measured as two in a row, and
some options alone, too: the difference is what the second one adds (`measure.costs`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from cfp.layouts import Layout, Layouts
from cfp.profile.measure.ledger import Ledger
from cfp.profile.programs.kinds import Option
from cfp.profile.programs.requests import Resharding, extract_requests, resharding_request

SMALL = 16  # reshardings compiled and run in turn: next to nothing each


def measure_reshardings(ledger: Ledger, leading: int | None = None) -> None:
    """Measures every pair of layouts that options on the two sides of a boundary may need, those of
    fast options first. With `leading`, only that many layouts of the fastest options count."""
    wanted: list[tuple[int, Resharding]] = []
    for boundary in dict.fromkeys(crossing.boundary for crossing in ledger.interfaces.crossings):
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


def measure_alone(ledger: Ledger, options: Mapping[int, Sequence[Option]]) -> bool:
    """Measures options alone, by kind, of the segments that were measured as two in a row; returns
    whether there was any left to measure."""
    wanted = []
    for kind in ledger.kinds:
        known = ledger.alone[kind.index]
        for option in options.get(kind.index, ()) if kind.chained is not None else ():
            if option not in known:
                layouts = ledger.layouts[kind.index][option]
                (known[option],) = extract_requests(
                    ledger.machine, ledger.mesh, kind, option, layouts
                )
                wanted.append(known[option])
    ledger.campaign.measure(wanted)
    return bool(wanted)
