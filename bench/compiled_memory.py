"""What a plan is predicted to need, beside what the compiler says of its full step; nothing runs.

The programs of its segments are compiled for the mesh and put together by the memory model, as
planning does it once they have run. The mesh may be one of devices that are not there
(`jax.experimental.topologies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from cfp import analyze
from cfp.layouts import Layouts
from cfp.plan.assemble import assemble_plan
from cfp.profile.measure.costs import cost_of, cost_of_two
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.memory import MemoryUse, memory_use
from cfp.profile.peak import needs_of, peak_bytes, shared_arguments
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import fills, lower
from cfp.profile.runners.executable import executable_of
from cfp.profile.runners.executable import lower as lower_job
from cfp.profile.runners.job import Job
from cfp.segments.extract import Extract


@dataclass(frozen=True, slots=True)
class Compared:
    """The memory that a plan is predicted to need on one device, and does by the compiler."""

    predicted_bytes: int
    compiled_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.compiled_bytes - 1


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles for a mesh; `platform` is given where that is not JAX's own."""

    mesh: Mesh
    platform: str | None = None

    def compare(
        self, step: Any, args: tuple[Any, ...], choose: Callable[[Kind], Option]
    ) -> Compared:
        """Compares the plan in which every kind of segment has the option that `choose` says."""
        shape = tuple(self.mesh.devices.shape)
        analysis = analyze(step, *args, mesh_shape=shape)
        graph = analysis.graph
        kinds = find_kinds(analysis)
        interfaces = find_interfaces(analysis, kinds)
        shared = shared_arguments(interfaces.crossings)
        donated = {graph.inputs[position] for position in graph.donated}
        options = {kind.index: choose(kind) for kind in kinds}
        uses = {kind.index: self.measured(kind, options[kind.index]) for kind in kinds}
        needs = [
            needs_of(
                kinds[segment.kind],
                [(uses[segment.kind], kinds[segment.kind].layouts(options[segment.kind]))],
                donated=donated,
                shared=shared.get(segment.index, ()),
                mesh_shape=shape,
            )
            for segment in analysis.segments
        ]
        chosen = [options[segment.kind] for segment in analysis.segments]
        plan = assemble_plan(step, analysis, self.mesh, interfaces, chosen, name="drawn")
        predicted = peak_bytes(needs, [0] * len(needs))
        return Compared(predicted, plan.memory_bytes())

    def measured(self, kind: Kind, option: Option) -> MemoryUse:
        """Returns what one occurrence of a kind needs, by the compiler."""
        layouts = kind.layouts(option)
        alone = [self._compiled(cut, lie) for cut, lie in zip(kind.extracts, layouts, strict=True)]
        if kind.chained is None:
            return cost_of(kind, layouts, alone).memory
        in_a_row = kind.chained_layouts(option)
        assert alone[0].memory is not None
        return cost_of_two(
            kind,
            in_a_row,
            self._compiled(kind.chained, in_a_row),
            between_s=0.0,
            fixed_s=0.0,
            alone=memory_use(kind.extracts[0], layouts[0], alone[0].memory),
        ).memory

    def _compiled(self, cut: Extract, layouts: Layouts) -> Measurement:
        """Returns a measurement of a program that was compiled and not run."""
        module = lower(cut, layouts, self.mesh, self.platform)
        job = Job("key", "name", module, fills(cut, layouts), dict(cut.feedback))
        lowered, _ = lower_job(job, self.mesh)
        memory = executable_of(lowered.compile(), job, self.mesh).memory
        return Measurement("key", "name", (1.0,), memory=memory)
