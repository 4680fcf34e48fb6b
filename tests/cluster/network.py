"""One of several processes that tell which network they are on, by the store in a folder, so many
times: `python -m bench.cluster run --spec SPEC -- python -m tests.cluster.network STORE TIMES`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.cluster.launch import VARIABLES
from cfp.cluster.wire import decode, encode
from cfp.devices import make_mesh
from cfp.profile.api import open_campaign
from cfp.profile.measure.network import find_network
from cfp.profile.runners.shared_decision import decide_together


def main(store: str, times: str) -> None:
    address, count, index = (os.environ[name] for name in VARIABLES)
    with Membership(address, int(count), int(index)).joined(2, "cpu") as team:
        mesh = make_mesh((2,), "cpu")

        def decide(team: Team | None) -> list[str]:
            with open_campaign(mesh, cache_dir=store, team=team) as campaign:
                machine = replace(campaign.machine, network="")
                again = [
                    find_network(campaign.runner, campaign.store, machine, mesh)
                    for _ in range(int(times) - 1)
                ]
                return [campaign.machine.network, *again]

        networks = decide_together(
            mesh, team, None, decide, pack=encode, unpack=lambda data: decode(data, list[str])
        )
    if team is not None and team.leads:
        print(*networks, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
