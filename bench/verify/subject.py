"""One step of the sweep: its analyses, its unsharded reference, and the plans made of it."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bench.verify.case import Case, Result
from bench.verify.cases import STEPS
from cfp import templates
from cfp.analysis import Analysis, analyze
from cfp.blocks import Strategy
from cfp.errors import CfpError
from cfp.layouts.state import State
from cfp.plan import Plan, Verified, build_plan, load
from cfp.plan.assemble import assemble_plan
from cfp.plan.verify import Reference, run_alone
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Many plans of one step share its reference."""

    name: str
    step: Any
    args: tuple[Any, ...]
    _analyses: dict[tuple[int, ...], Analysis] = field(default_factory=dict)
    _reference: list[Reference] = field(default_factory=list)

    @staticmethod
    def make(name: str, **options: Any) -> Subject:
        return Subject(name, *STEPS[name](**options))

    def analysis(self, mesh_shape: tuple[int, ...]) -> Analysis:
        if mesh_shape not in self._analyses:
            self._analyses[mesh_shape] = analyze(self.step, *self.args, mesh_shape=mesh_shape)
        return self._analyses[mesh_shape]

    def reference(self, mesh_shape: tuple[int, ...]) -> Reference:
        """Returns the unsharded step's results, made once: the graph is the same for every mesh."""
        if not self._reference:
            graph = self.analysis(mesh_shape).graph
            self._reference.append(run_alone(self.step, self.args, graph, jax.devices()[0]))
        return self._reference[0]

    def strategies(self, case: Case) -> list[Strategy]:
        """Returns a random strategy per block; the same for the same case anywhere."""
        random = Random(f"{case} {case.seed}")
        blocks = self.analysis(case.mesh_shape).blocks
        shape = case.mesh_shape
        every = [(*block.strategies(shape), *block.stream_strategies(shape)) for block in blocks]
        return [random.choice(some) for some in every]

    def options(self, case: Case, kinds: Sequence[Kind]) -> list[Option]:
        """Returns a random option per segment, training state and what is kept included."""
        random = Random(f"{case} {case.seed}")
        found = []
        for segment in self.analysis(case.mesh_shape).segments:
            combo = tuple(random.randrange(len(some)) for some in kinds[segment.kind].choices)
            found.append(Option(combo, random.choice([*State]), random.choice([*Keep])))
        return found

    def plan(self, case: Case) -> Plan:
        mesh = make_mesh(case.mesh_shape)
        if not case.is_random:
            template = getattr(templates, case.plan)
            made: Plan = template(self.step, *self.args, mesh=mesh)
            return made
        analysis = self.analysis(case.mesh_shape)
        if case.by_segment:
            kinds = find_kinds(analysis)
            options = self.options(case, kinds)
            interfaces = find_interfaces(analysis, kinds)
            return assemble_plan(self.step, analysis, mesh, interfaces, options, name=case.plan)
        return build_plan(self.step, analysis, mesh, self.strategies(case), name=case.plan)

    def verify(self, case: Case, plan: Plan) -> Verified:
        return self.reference(case.mesh_shape).verify(plan)

    def round_trip(self, plan: Plan) -> bool:
        """Returns whether the plan, saved and loaded, asks the same of every tensor."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            plan.save(path)
            again = load(path, mesh=plan.mesh).bind(self.step, *self.args)
        assert plan.bound is not None
        assert again.bound is not None
        return again.bound.layouts == plan.bound.layouts

    def check(self, case: Case) -> Result:
        """Returns all that is asked of a case. Whatever goes wrong is a result too."""
        start = time.perf_counter()
        result = self._check(case)
        return replace(result, time_s=round(time.perf_counter() - start, 2))

    def _check(self, case: Case) -> Result:
        try:
            plan = self.plan(case)
        except CfpError as error:
            if not case.is_random:
                return Result(case, "refused", str(error))
            return self._failed(case, error)
        except Exception as error:  # noqa: BLE001  # the sweep goes on
            return self._failed(case, error)
        try:
            verified = self.verify(case, plan)
            same = self.round_trip(plan) if case.round_trip else None
        except Exception as error:  # noqa: BLE001
            return self._failed(case, error)
        worst = verified.worst
        status, message = "ok", ""
        if same is False:
            status, message = "failed", "saved and loaded, the plan asks for other layouts"
        return Result(case, status, message, worst.ratio, worst.path, same)

    def _failed(self, case: Case, error: Exception) -> Result:
        lines = traceback.format_exception(error)
        detail = "".join(lines)[-3000:]
        if case.by_segment:
            kinds = find_kinds(self.analysis(case.mesh_shape))
            detail += f"\noptions {self.options(case, kinds)}"
        elif case.is_random:
            detail += f"\nstrategies {self.strategies(case)}"
        first = str(error).strip().split("\n")[0]
        return Result(case, "failed", f"{type(error).__name__}: {first}", detail=detail)


def make_mesh(shape: tuple[int, ...]) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, tuple("xyz"[: len(shape)]))
