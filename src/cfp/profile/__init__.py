"""Stage 4 measures the options of every distinct segment on the real devices.

Four rooms, each with a docstring that lists its files, and four files on top. What is imported
points up this list, never down (a test keeps it so):

    runners/      where programs run: in this process, in a worker, over several processes
    programs/     what to measure: segment kinds and their options, crossings, keys
    measure/      how: campaigns, rounds, drift, statistics, the store, and costs
    peak.py       the memory model over the step: what one device holds at its peak
    explore/      which options, in which order, and when to stop
    profile.py    what profiling returns: `Profile`
    profiler.py   the stages of profiling a step, in order
    api.py        the entries: `profile`, and `open_campaign` for whoever measures something else

The public names are imported when the first of them is used: the workers need the runners alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfp.lazy import import_when_used

if TYPE_CHECKING:
    from cfp.profile.api import profile
    from cfp.profile.measure.costs import Cost, SegmentProfile
    from cfp.profile.measure.progress import Progress
    from cfp.profile.measure.rounds import Effort
    from cfp.profile.measure.store import Store, StoreWarning
    from cfp.profile.profile import Profile
    from cfp.profile.programs.boundary import Boundary, Crossing
    from cfp.profile.programs.kinds import Kind, Option
    from cfp.profile.programs.machine import Machine

__all__ = [
    "Boundary",
    "Cost",
    "Crossing",
    "Effort",
    "Kind",
    "Machine",
    "Option",
    "Profile",
    "Progress",
    "SegmentProfile",
    "Store",
    "StoreWarning",
    "profile",
]

import_when_used(
    __name__,
    {
        "Boundary": "cfp.profile.programs.boundary",
        "Cost": "cfp.profile.measure.costs",
        "Crossing": "cfp.profile.programs.boundary",
        "Effort": "cfp.profile.measure.rounds",
        "Kind": "cfp.profile.programs.kinds",
        "Machine": "cfp.profile.programs.machine",
        "Option": "cfp.profile.programs.kinds",
        "Profile": "cfp.profile.profile",
        "Progress": "cfp.profile.measure.progress",
        "SegmentProfile": "cfp.profile.measure.costs",
        "Store": "cfp.profile.measure.store",
        "StoreWarning": "cfp.profile.measure.store",
        "profile": "cfp.profile.api",
    },
)
