"""One of several processes that train with `cfp.jit`, as a user's script does:
`cfp launch --processes 2 -- python -m tests.cluster.jitted STORE [--stored]`.

With `--stored` no process may measure. Process 0 prints the losses and the plan.
"""

from __future__ import annotations

import json
import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh

import cfp
from cfp import planner
from cfp.cluster.launch import VARIABLES
from cfp.profile import Effort
from tests.cluster.small import make_step
from tests.planning.jit_script import forbid


def main(store: str, *flags: str) -> None:
    address, count, index = (os.environ[name] for name in VARIABLES)
    jax.distributed.initialize(address, int(count), int(index))
    if "--stored" in flags:
        planner.open_campaign = forbid
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[i] for i in sorted(first)]), ("x",))
    step, (ws, x) = make_step()
    effort = Effort(warmups=1, repeats=3)
    jitted = cfp.jit(step, mesh=mesh, audit=0, effort=effort, cache_dir=store)
    losses = []
    for _ in range(3):
        found = jitted(ws, x)
        ws = found["ws"]
        losses.append(float(found["loss"]))
    if jax.process_index() == 0:
        print(json.dumps({"losses": losses, "plan": jitted.plan.show()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
