"""Plans one of the steps in a process of its own, on the mesh that `jax.make_mesh` gives and under
`jax.set_mesh`, as JAX's guides have it.

    python -m tests.first_contact.planning HABIT MESH FILE
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import jax
from jax.sharding import AxisType

import cfp
from cfp.profile import Effort
from tests.first_contact.meshes import mesh
from tests.first_contact.steps import STEPS

BUDGETS_S = (3, 5, 10, 20, 40)  # on a busy machine the first may end before there is a plan


def main(habit: str, sizes: str, file: str) -> None:
    warnings.simplefilter("error")
    user = STEPS[habit](False)
    on = mesh(tuple(map(int, sizes.split("x"))), AxisType.Explicit)
    for budget_s in BUDGETS_S:
        try:
            with jax.set_mesh(on):
                plan = cfp.plan(
                    user.step,
                    *user.args,
                    mesh=on,
                    budget=budget_s,
                    audit=1,
                    cache_dir=Path(file).parent,
                    effort=Effort(warmups=1, repeats=3),
                )
        except cfp.CfpError as error:
            print(error, file=sys.stderr)
            continue
        assert plan.mesh == on
        plan.save(file)
        return
    sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
