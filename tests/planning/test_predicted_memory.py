"""What plans are predicted to need, beside what the compiler says of their full steps."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import jax
from bench.compiled_memory import Compiler

from cfp.layouts.state import State
from cfp.models import config, make_step
from cfp.profile.programs.kinds import Kind, Option
from cfp.segments.keep import Keep
from tests.foreign.plain import accumulation
from tests.profile.cases import mesh

MESH = (4,)
WORST, MEDIAN = 0.10, 0.05
# An update that runs once, around a loop, is a program of its own. Since its results are fed back
# in the order of their arguments, XLA copies more of what it overwrites than in the step.
WORST_OF_UPDATES = 0.15


def errors(step: Any, args: tuple[Any, ...], ways: list[tuple[int, State, Keep]]) -> list[float]:
    """The errors of plans, in each of which all segments are split in the same of their ways."""

    def option(way: tuple[int, State, Keep], kind: Kind) -> Option:
        number, state, keep = way
        combo = tuple(min(number, len(choices) - 1) for choices in kind.strategies)
        return Option(combo, state, keep if keep in kind.levels else Keep.AS_WRITTEN)

    compiler = Compiler(mesh(MESH))
    return [compiler.compare(step, args, partial(option, way)).error for way in ways]


def test_layers_in_a_row_in_loops_and_with_micro_batches() -> None:
    gpt, gpt_args = make_step(config("gpt", layers=3, batch=32), abstract=True)
    looped = config("llama", layers=4, batch=32, scan=True, checkpoint=True)
    llama, llama_args = make_step(looped, abstract=True)
    micro, micro_args = accumulation.make_step(layers=4, batch=32, abstract=True, micro_batches=4)
    off: list[float] = []
    for step, args, ways in (
        (
            jax.jit(gpt, donate_argnums=0),
            gpt_args,
            [
                (0, State.BLOCK, Keep.AS_WRITTEN),
                (0, State.FSDP, Keep.CONTRACTIONS),
                (1, State.ZERO1, Keep.CONTRACTIONS),
            ],
        ),
        (jax.jit(llama, donate_argnums=0), llama_args, [(0, State.BLOCK, Keep.AS_WRITTEN)]),
        (
            jax.jit(micro, donate_argnums=(0, 1)),
            micro_args,
            [(0, State.BLOCK, Keep.AS_WRITTEN), (0, State.FSDP, Keep.INPUTS)],
        ),
    ):
        off += errors(step, args, ways)
    sizes = [abs(error) for error in off]
    assert max(sizes[:-2]) <= WORST, off
    assert max(sizes[-2:]) <= WORST_OF_UPDATES, off
    assert statistics.median(sizes) <= MEDIAN, off
