"""From a traced step and a mesh shape to Alpa's answer: the stages in order."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from cfp.errors import CfpError
from cfp.layouts import Layouts
from cfp.templates.alpa_ilp.batch import batch_dims
from cfp.templates.alpa_ilp.build import build
from cfp.templates.alpa_ilp.cost import Cluster
from cfp.templates.alpa_ilp.eliminate import Core, eliminate
from cfp.templates.alpa_ilp.ilp import CoreSolution, solve_core
from cfp.templates.alpa_ilp.ledger import AlpaLedger
from cfp.templates.alpa_ilp.options import AlpaOptions
from cfp.templates.alpa_ilp.problem import AlpaProblem, price, tables
from cfp.templates.alpa_ilp.scatter import scatter_gradients
from cfp.templates.alpa_ilp.solution import AlpaSolution, communications
from cfp.trace import Graph

_RELENT = 1e3  # a forbidden pair then costs this times the dearest allowed one


def solve_alpa(
    graph: Graph,
    mesh_shape: tuple[int, ...],
    *,
    parameters: frozenset[int],
    feedback: Mapping[int, int] | None = None,
    options: AlpaOptions | None = None,
    time_limit_s: float = 60.0,
) -> AlpaSolution:
    """Returns Alpa's layouts for a traced step on a logical mesh.

    `parameters` are the values of the arguments that are trained. `feedback` (output position ->
    input position) says which outputs replace which arguments: they get the argument's layout.
    """
    began = time.perf_counter()
    options = options or AlpaOptions()
    ledger = make_ledger(graph, mesh_shape, parameters, feedback or {}, options)
    problem = ledger.problem
    left_s = max(1.0, time_limit_s - (time.perf_counter() - began))
    ways, answer = solve_problem(problem, left_s)
    relented = math.isinf(price(problem, ways))
    solution = AlpaSolution(
        layouts=_layouts(ledger, ways, feedback or {}),
        cost=price(problem, ways, relent=relented),
        gap=answer.gap,
        status="optimal" if answer.optimal else "time limit",
        seconds=time.perf_counter() - began,
        variables=answer.variables,
        communications=communications(problem, ways),
        relented=relented,
    )
    if options.prefer_reduce_scatter:
        return scatter_gradients(solution, ledger, ways, feedback or {})
    return solution


def make_ledger(
    graph: Graph,
    mesh_shape: tuple[int, ...],
    parameters: frozenset[int],
    feedback: Mapping[int, int],
    options: AlpaOptions,
) -> AlpaLedger:
    """Returns the step as Alpa's problem; the arguments are those of `solve_alpa`."""
    cluster = make_cluster(mesh_shape, options)
    fed_back = {graph.outputs[o]: graph.inputs[i] for o, i in feedback.items()}
    fed_back = {v: a for v, a in fed_back.items() if graph.values[v].shape == graph.values[a].shape}
    return build(graph, cluster, options, batch_dims(graph, parameters), fed_back)


def make_cluster(mesh_shape: tuple[int, ...], options: AlpaOptions) -> Cluster:
    """Returns the mesh as the options see it."""
    axes = [axis for axis, size in enumerate(mesh_shape) if size > 1]
    forced, data_parallel = options.force_batch_axis, options.force_data_parallel
    if data_parallel:
        if len(axes) > 1:
            raise CfpError(
                f"`force_data_parallel` needs a mesh with one axis longer than 1, not {mesh_shape}."
            )
        forced = axes[0] if axes else None
    elif forced is None and len(axes) > 1 and not options.free_batch:
        forced = axes[0]
    ones = (1.0,) * len(mesh_shape)
    return Cluster(
        mesh_shape,
        options.alpha or ones,
        options.beta or ones,
        allow_all_gather=options.allow_all_gather and not data_parallel,
        allow_all_to_all=options.allow_all_to_all and not data_parallel,
        forced_axis=forced,
    )


def solve_problem(
    problem: AlpaProblem, time_limit_s: float
) -> tuple[tuple[int, ...], CoreSolution]:
    """Returns the cheapest assignment, or the least forbidden one where all are forbidden."""
    nodes, edges = tables(problem)
    core = eliminate(nodes, edges)
    answer = solve_core(core, time_limit_s) if _possible(core) else None
    if answer is None or answer.ways is None:
        finite = [np.abs(table[np.isfinite(table)]).max(initial=1.0) for table in edges.values()]
        dear = _RELENT * max(finite, default=1.0)
        edges = {edge: np.where(np.isfinite(t), t, dear) for edge, t in edges.items()}
        nodes = [np.where(np.isfinite(own), own, dear) for own in nodes]
        core = eliminate(nodes, edges)
        answer = solve_core(core, time_limit_s)
    if answer.ways is None:
        raise CfpError(f"The solver found nothing in {time_limit_s:.0f} s. Raise `time_limit_s`.")
    ways = core.complete(answer.ways)
    return tuple(ways[node] for node in range(len(nodes))), answer


def _possible(core: Core) -> bool:
    return math.isfinite(core.constant) and all(
        np.isfinite(table).any() for table in (*core.nodes.values(), *core.edges.values())
    )


def _layouts(ledger: AlpaLedger, ways: tuple[int, ...], feedback: Mapping[int, int]) -> Layouts:
    graph = ledger.graph
    chosen = {value: layouts[ways[ledger.node[value]]] for value, layouts in ledger.layouts.items()}
    outputs = [chosen[value] for value in graph.outputs]
    for out, argument in feedback.items():
        if graph.values[graph.outputs[out]].shape == graph.values[graph.inputs[argument]].shape:
            outputs[out] = chosen[graph.inputs[argument]]
    uses = {
        place: asked[ways[ledger.node[graph.equations[place[0]].outputs[0]]]]
        for place, asked in ledger.asked.items()
    }
    return Layouts(
        inputs=tuple(chosen[value] for value in graph.inputs),
        outputs=tuple(outputs),
        values={value: chosen[value] for value in sorted(ledger.chosen)},
        uses=uses,
    )
