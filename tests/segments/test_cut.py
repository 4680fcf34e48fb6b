"""The cut is right: all parts in their order give exactly the step's results."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from cfp import analyze
from cfp.analysis import Analysis
from cfp.blocks.feedback import find_feedback
from cfp.models import config, make_step
from cfp.segments import Phase
from tests.conftest import OLD_EMITTERS
from tests.foreign import MODELS, PLAIN
from tests.segments.check import check_segments
from tests.segments.run_parts import run_parts

# The older emitters compile in half the time, but how they round may depend on how equations are
# grouped. Where bits differ, the newer ones decide, which round alike however it is.
COMPILED: tuple[dict[str, Any], ...] = (
    ({}, {"xla_cpu_use_fusion_emitters": True}) if OLD_EMITTERS else ({},)
)
STEPS: dict[str, Any] = {
    "bert": lambda: make_step(config("bert", clip_norm=1.0)),
    "gpt": lambda: make_step(config("gpt", clip_norm=1.0)),
    "moe": lambda: make_step(config("moe", clip_norm=1.0)),
    "llama": lambda: make_step(config("llama", clip_norm=1.0)),
    "gpt_tied": lambda: make_step(config("gpt", tied=True)),
    "gpt_scan": lambda: make_step(config("gpt", scan=True, clip_norm=1.0)),
    "moe_scan_checkpoint": lambda: make_step(config("moe", scan=True, checkpoint=True)),
    "llama_checkpoint": lambda: make_step(config("llama", checkpoint=True)),
    "bert_bf16": lambda: make_step(config("bert", dtype="bfloat16")),
    **{
        name: PLAIN[name]
        for name in ("accumulate", "rnn", "control_flow", "odd_arguments", "unet", "clip")
    },
    "equinox": MODELS["equinox"],
}


@pytest.mark.parametrize("name", STEPS)
def test_parts_in_order_give_exactly_the_step(name: str) -> None:
    step, args = STEPS[name]()
    analysis = analyze(step, *args, mesh_shape=(4,))
    check_segments(analysis.graph, analysis.grouping, analysis.segmentation)

    def in_parts(*flat: Any) -> Any:
        return run_parts(analysis.graph, analysis.segmentation.parts, flat)

    different: list[str] = []
    for options in COMPILED:
        found = jax.jit(in_parts, compiler_options=options)(*jax.tree.leaves(args))
        expected = jax.tree.leaves(jax.jit(step, compiler_options=options)(*args))
        outputs = zip(analysis.graph.output_paths, found, expected, strict=True)
        different = [path for path, a, b in outputs if not np.array_equal(_bits(a), _bits(b))]
        if not different:
            break
    assert different == []


def _bits(array: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.asarray(array)


def part_sizes(analysis: Analysis, phase: Phase) -> list[int]:
    return [len(part.equations) for part in analysis.segmentation.parts if part.phase is phase]


@pytest.mark.parametrize("name", ["bert", "gpt", "llama"])
def test_repeated_layers_get_equal_shares_of_the_backward_pass_and_the_update(name: str) -> None:
    step, args = make_step(config(name, layers=5, clip_norm=1.0), abstract=True)
    analysis = analyze(step, *args, mesh_shape=(4,))
    backward = part_sizes(analysis, Phase.BACKWARD)[::-1]
    # the backward pass of the layer in the middle is that of its neighbours
    assert backward[2] == backward[3] == backward[4]
    update = part_sizes(analysis, Phase.UPDATE)
    assert len(set(update[1:6])) == 1
    # a global norm is shared, and small: scalars alone enter and leave it
    epilogue = analysis.segmentation.part(None, Phase.EPILOGUE)
    assert epilogue is not None
    sizes = {analysis.graph.values[v].shape for v in (*epilogue.inputs, *epilogue.outputs)}
    assert sizes == {()}


@pytest.mark.parametrize("name", STEPS)
def test_parameters_are_updated_by_the_segment_that_uses_them(name: str) -> None:
    """The first of several; and what the update alone reads, its optimizer state, likewise."""
    step, args = STEPS[name]()
    analysis = analyze(step, *args, mesh_shape=(4,))
    graph, cut = analysis.graph, analysis.segmentation
    part_of = {equation: part for part in cut.parts for equation in part.equations}

    def readers(value: int, phase: Phase) -> set[int]:
        parts = [part_of[reader] for reader in graph.readers[value]]
        return {p.segment for p in parts if p.phase is phase and p.segment is not None}

    updated_by = {value: part.segment for part in cut.parts for value in part.outputs}
    feedback = find_feedback(graph, analysis.grouping.parameters)
    assert feedback
    for result, argument in feedback.items():
        value, by = graph.inputs[argument], updated_by.get(graph.outputs[result])
        if by is not None and value in analysis.grouping.parameters:
            assert by == min(readers(value, Phase.FORWARD)), graph.input_paths[argument]
        elif by is not None:
            assert readers(value, Phase.UPDATE) <= {by}, graph.input_paths[argument]
