"""A stranger on the machine can end a run of several processes. It cannot run code in it.

The run is a comparison that does what it should: one run shows both, for it takes four processes.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pickle
import subprocess
from pathlib import Path

from tests.cluster.stranger import Payload, Stranger
from tests.cluster.test_processes import LAUNCH, MESH, TARGET

PLANS = ["data_parallel", "zero1"]


def test_they_compare_and_a_stranger_runs_nothing(tmp_path: Path) -> None:
    """JAX's own cache is not used either: what one process loads from there it cannot give to
    another."""
    marker, cached = tmp_path / "marker", tmp_path / "cached"
    pickle.loads(pickle.dumps(Payload(marker)))  # this is what must not happen
    marker.unlink()
    options = ["compare", TARGET, *MESH, "--plans", ",".join(PLANS), "--rounds", "5", "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CFP_")}
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(cached),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with (
        subprocess.Popen(
            [*LAUNCH, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | cache,
        ) as launched,
        Stranger(launched.pid, marker) as stranger,
    ):
        out, err = launched.communicate(timeout=240)
    assert not marker.exists()
    assert stranger.written, err  # so it could have
    assert len(stranger.talked) >= 5  # two coordinators, ours, and one of Gloo's in each process
    assert all(ipaddress.ip_address(host).is_loopback for host, _ in stranger.talked)
    assert launched.returncode == 0, err
    found = {plan["name"]: plan["failed"] for plan in json.loads(out)["plans"]}
    assert found == dict.fromkeys(PLANS)
    assert not [*cached.glob("jit_program*")]
