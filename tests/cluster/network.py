"""One of several processes that tell which network they are on, by the store in a folder:
`python -m bench.cluster run --spec SPEC -- python -m tests.cluster.network STORE`."""

from __future__ import annotations

import os
import sys

from cfp.cli_cluster import VARIABLES
from cfp.cluster import Team
from cfp.cluster.join import Membership
from cfp.devices import make_mesh
from cfp.profile.api import open_campaign
from cfp.profile.together import together


def main(store: str) -> None:
    address, count, index = (os.environ[name] for name in VARIABLES)
    with Membership(address, int(count), int(index)).joined(2, "cpu") as team:
        mesh = make_mesh((2,), "cpu")

        def decide(team: Team | None) -> str:
            with open_campaign(mesh, cache_dir=store, team=team) as campaign:
                return campaign.machine.network

        network = together(mesh, team, None, decide)
    if team is not None and team.leads:
        print(network)


if __name__ == "__main__":
    main(*sys.argv[1:])
