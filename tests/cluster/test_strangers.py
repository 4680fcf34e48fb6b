"""A stranger on the machine can end a run of several processes. It cannot run code in it."""

from __future__ import annotations

import ipaddress
import json
import os
import pickle
import subprocess
from pathlib import Path

from tests.cluster.stranger import Payload, Stranger
from tests.cluster.test_processes import LAUNCH, MESH, TARGET


def test_a_stranger_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(marker)))  # this is what must not happen
    marker.unlink()
    options = ["compare", TARGET, *MESH, "--plans", "data_parallel", "--rounds", "5", "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CFP_")}
    with (
        subprocess.Popen(
            [*LAUNCH, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as launched,
        Stranger(launched.pid, marker) as stranger,
    ):
        out, err = launched.communicate(timeout=240)
    assert not marker.exists()
    assert stranger.written, err  # so it could have
    assert len(stranger.talked) >= 5  # two coordinators, ours, and one of Gloo's in each process
    assert all(ipaddress.ip_address(host).is_loopback for host, _ in stranger.talked)
    assert launched.returncode == 0, err
    assert [plan["failed"] for plan in json.loads(out)["plans"]] == [None]
