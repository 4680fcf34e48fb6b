"""Plans that `cfp.jit` made, kept beside the measurements: one file for each.

    FOLDER/plans/KEY.json        an ordinary plan file, which `cfp explain` reads
    KEY = hash(step, mesh, options, machine)

The step counts by content: its traced equations, shapes, dtypes and constants, the paths of its
arguments and results, and what it donates. The machine is that of measurements (devices, versions
of JAX, the compiler's flags), save for the network between processes, which takes programs to
recognise. A file that is damaged, or that is not for this step, is ignored with one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from cfp.analysis import Analysis
from cfp.cluster import Team
from cfp.errors import CfpError, PlanWarning
from cfp.plan import Plan, load
from cfp.plan.bind import bind_analysed
from cfp.plan.file import VERSION as PLAN_VERSION
from cfp.planning.options import Options
from cfp.profile.measure.full_step import whole_step
from cfp.profile.measure.store import store_folder
from cfp.profile.programs.key import program_digest
from cfp.profile.programs.machine import Machine
from cfp.version import VERSION

FORMAT = 1  # raise it when the same key would stand for another question
NOT_ASKED = {"cache_dir", "isolate"}  # options that say where a plan is made, and not which one


def key_of_plan(analysis: Analysis, mesh: Mesh, options: Options, team: Team | None) -> str:
    """Returns the name under which the plan of a step is kept: the question that it answers."""
    graph = analysis.graph
    machine = Machine.of(mesh)
    if team is not None:
        machine = machine.on(mesh, team.host_numbers())
    resolved = {
        "memory_limit": options.limit_bytes(mesh),
        "pins": sorted((path, str(spec)) for path, spec in (options.pins or {}).items()),
        "budget": None if options.budget_s is None else float(options.budget_s),
        "audit": options.audited,
        "beside": list(options.beside),
        "effort": None if options.effort is None else asdict(options.effort),
    }
    names = [field.name for field in fields(options) if field.name not in NOT_ASKED]
    asked = {name: resolved.get(name, getattr(options, name)) for name in names}
    question = [
        [FORMAT, PLAN_VERSION, VERSION],
        program_digest(whole_step(analysis)),
        [graph.input_paths, graph.output_paths, sorted(graph.donated)],
        mesh.axis_names,
        asked,
        machine.to_json(),
    ]
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The plans of one folder, which is that of the measurements."""

    folder: Path

    @staticmethod
    def beside(cache_dir: str | os.PathLike[str] | None) -> KeptPlans:
        """Returns the plans that lie beside the measurements of `cache_dir`."""
        return KeptPlans(store_folder(cache_dir) / "plans")

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def find(
        self, key: str, mesh: Mesh, step: Callable[..., Any], analysis: Analysis
    ) -> Plan | None:
        """Returns the plan of that key, bound to its step, or None where there is none to use."""
        path = self.path(key)
        if not os.path.lexists(path):
            return None
        try:
            return bind_analysed(load(path, mesh=mesh), step, analysis)
        except CfpError as error:
            warnings.warn(
                f"{path} is ignored and the step is planned anew: {error}",
                PlanWarning,
                stacklevel=2,
            )
            return None

    def keep(self, key: str, plan: Plan) -> None:
        """Writes a plan; it is there whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CfpError(
                f"Cannot keep the plan in {self.folder}: {error.strerror}. Give another folder "
                "with cache_dir."
            ) from error
        plan.save(self.path(key))

    def files(self) -> list[Path]:
        """Returns the files of all plans that are kept."""
        return sorted(self.folder.glob("*.json"))

    def prune(self, older_than_s: float | None) -> int:
        """Removes the plans that are older, or all of them; says how many."""
        removed = 0
        for path in self.files():
            if older_than_s is None or path.stat().st_mtime < time.time() - older_than_s:
                path.unlink(missing_ok=True)
                removed += 1
        return removed
