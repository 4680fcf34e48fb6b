"""One of several processes that profile the small step, with workers that fail where they are told
to: `cfp launch --processes 2 -- python -m tests.cluster.faulty STORE NUMBER FAULTS`.

FAULTS is JSON, as of `tests.profile.runners.faulty_worker`; it holds in process NUMBER alone.
Process 0 prints what failed, and how many options ran."""

from __future__ import annotations

import functools
import json
import os
import sys

import cfp
from cfp.cluster.join import Membership
from cfp.cluster.launch import VARIABLES
from cfp.devices import make_mesh
from cfp.profile import Effort, profile
from cfp.profile.runners import shared_decision
from cfp.profile.runners.process import ProcessRunner
from tests.cluster.small import make_step
from tests.profile.steps import FAULTY


def main(store: str, number: str, faults: str) -> None:
    address, count, index = (os.environ[name] for name in VARIABLES)
    if index == number:
        os.environ["CFP_TEST_PLAN"] = faults
    shared_decision.ProcessRunner = functools.partial(ProcessRunner, command=FAULTY)  # type: ignore[misc,assignment]
    with Membership(address, int(count), int(index)).joined(2, "cpu") as team:
        step, args = make_step()
        analysis = cfp.analyze(step, *args, mesh_shape=(2,))
        effort = Effort(warmups=1, repeats=3, wave=2, hang_s=3)
        mesh = make_mesh((2,), "cpu")
        found = profile(analysis, mesh, cache_dir=store, effort=effort, team=team)
    failed = [reason for segment in found.segments for reason in segment.failed.values()]
    ran = sum(len(segment.costs) for segment in found.segments)
    if team is not None and team.leads:
        print(json.dumps({"failed": failed, "ran": ran}))


if __name__ == "__main__":
    main(*sys.argv[1:])
