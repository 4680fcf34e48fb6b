"""google-parallax: what its `AUTO` assigns to a step's arguments, where it is installed.

It names the dim that occurs most often in the parameters, and gives it one mesh axis; dims that
only the data have get the other. Inside the step the compiler chooses. It is no template of ours:
`cfp.compare` takes it by its name, and what it cannot do is said in its place.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.errors import CfpError
from cfp.layouts import AnyMesh, Layouts
from cfp.plan import Plan, plan_of_layouts
from cfp.plan.build import analyze_for
from cfp.plan.pins import layout_of

AXES = 2  # of the mesh that `AUTO` takes: one for the data, one for the model
_DISTRIBUTION = "google-parallax"
_FIRST_DATA_DIM = "0"  # what it appends to the axis where the data have several dims of their own


def parallax(step: Callable[..., Any], *args: Any, mesh: AnyMesh) -> Plan:
    """Returns the plan of google-parallax's `AUTO`. The mesh's first axis is for the data, the
    second for the model. Training state that a step returns lies as it came."""
    if len(mesh.axis_names) != AXES:
        raise CfpError(f"google-parallax takes a mesh of two axes, not {len(mesh.axis_names)}.")
    analysis = analyze_for(step, args, mesh)
    graph = analysis.graph
    feedback = find_feedback(graph, analysis.grouping.parameters)
    specs, results = _assigned(step, analysis, sorted(feedback.values()), mesh)
    inputs = tuple(
        layout_of(
            _known(spec, mesh), path, graph.values[value].shape, mesh, f"google-parallax: {path}"
        )
        for spec, path, value in zip(specs, graph.input_paths, graph.inputs, strict=True)
    )
    outputs = tuple(
        inputs[feedback[i]]
        if i in feedback
        else layout_of(_known(spec, mesh), path, graph.values[value].shape, mesh, "google-parallax")
        for i, (spec, path, value) in enumerate(
            zip(results, graph.output_paths, graph.outputs, strict=True)
        )
    )
    note = (
        f"AUTO of google-parallax {metadata.version(_DISTRIBUTION)}: arguments alone are assigned."
    )
    layouts = Layouts(inputs, outputs, {}, {})
    return plan_of_layouts(step, analysis, mesh, layouts, name="parallax", notes=(note,))


def _assigned(
    step: Callable[..., Any], analysis: Analysis, state: Sequence[int], mesh: AnyMesh
) -> tuple[list[Any], list[Any]]:
    """Returns a PartitionSpec per argument and per result. `state` are the positions of training
    state: to google-parallax these are the parameters, and all others inputs."""
    try:
        auto_shard: Any = import_module("parallax.sharding.auto_shard")
        version = metadata.version(_DISTRIBUTION)
    except ImportError as error:  # another package of that name, or none
        raise CfpError(
            'google-parallax is not installed: pip install "cfp-jax[parallax]".'
        ) from error
    graph = analysis.graph
    shape: Any = jax.ShapeDtypeStruct
    leaves = [shape(graph.values[v].shape, graph.values[v].dtype) for v in graph.inputs]
    data = [i for i in range(len(leaves)) if i not in state]
    pure = graph.calling.pure(step)

    def of_leaves(of_state: tuple[Any, ...], of_data: tuple[Any, ...]) -> Any:
        given = dict(zip([*state, *data], [*of_state, *of_data], strict=True))
        flat = [given[i] for i in range(len(leaves))]
        # in tuples, not lists: it takes a list for the spec of one array
        return tuple(jax.tree.leaves(pure(*jax.tree.unflatten(graph.in_tree, flat))))

    kinds: Any = (AxisType.Auto,) * AXES
    abstract: Any = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
    first, second = mesh.axis_names
    try:
        with jax.sharding.use_abstract_mesh(abstract):
            (of_state, of_data), results = auto_shard.get_shardings(
                of_leaves,
                tuple(leaves[i] for i in state),
                tuple(leaves[i] for i in data),
                data_axis_name=first,
                model_axis_name=second,
            )
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1].name
        raise CfpError(
            f"google-parallax {version} does not take this step "
            f"({type(error).__name__} in {where})."
        ) from error
    found = dict(zip([*state, *data], [*of_state, *of_data], strict=True))
    return [found[i] for i in range(len(leaves))], list(results)


def _known(spec: Any, mesh: AnyMesh) -> tuple[Any, ...]:
    """Returns a spec of axes that the mesh has. Where the data have several dims of their own, it
    numbers them, and the first one gets the axis."""
    first = mesh.axis_names[0]
    renamed = (first if axis == first + _FIRST_DATA_DIM else axis for axis in spec)
    return tuple(axis if axis in mesh.axis_names else None for axis in renamed)
