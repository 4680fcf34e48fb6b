"""The steps of the sweep and the plans to verify, each with a name that makes it again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.foreign import MODELS, PLAIN
from tests.foreign.plain import accumulation

from bench.verify.case import RANDOM, Case
from cfp import templates
from cfp.errors import CfpError
from cfp.models import NAMES, config, make_step

# make(layers=..., batch=...) -> (step, args)
Make = Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]


def _ours(name: str, *, layers: int = 2, batch: int = 8, **options: Any) -> Any:
    return make_step(config(name, "tiny", layers=layers, batch=batch, **options))


BUILT_IN: dict[str, Make] = {
    **{name: partial(_ours, name) for name in NAMES},
    "gpt_scan": partial(_ours, "gpt", scan=True),
    "gpt_scan_checkpoint": partial(_ours, "gpt", scan=True, checkpoint=True),
    "gpt_tied_clip": partial(_ours, "gpt", tied=True, clip_norm=0.5),
    "gpt_bfloat16": partial(_ours, "gpt", dtype="bfloat16"),
    "llama_scan": partial(_ours, "llama", scan=True),
}
STEPS: dict[str, Make] = {**BUILT_IN, **MODELS, "accumulation": accumulation.make_step, **PLAIN}
TEMPLATES = tuple(
    name
    for name in ("data_parallel", "megatron", "megatron_sp", "zero1", "fsdp", "alpa")
    if name in templates.__all__
)
MESHES = ("2", "4", "2x2", "8")
RANDOM_MESHES = (*MESHES, "2x2x2", "1x4")


def make_cases(
    steps: Sequence[str] = tuple(STEPS),
    meshes: Sequence[str] = MESHES,
    *,
    random: int = 12,
    seed: int = 0,
) -> list[Case]:
    """Returns for each step every template on every mesh (none for `PLAIN` steps), and `random`
    random plans."""
    for step in steps:
        if step not in STEPS:
            raise CfpError(f"There is no step `{step}`: use some of {', '.join(STEPS)}.")
    for mesh in meshes:
        if (
            not re.fullmatch(r"[1-8](x[1-8]){0,2}", mesh)
            or math.prod(Case("", mesh, "").mesh_shape) > 8
        ):
            raise CfpError(f"`{mesh}` is no mesh of at most 8 devices: write 4 or 2x2.")
    anywhere = tuple(dict.fromkeys((*meshes, *RANDOM_MESHES[len(MESHES) :])))
    cases: list[Case] = []
    for step in steps:
        if step not in PLAIN:
            cases += [Case(step, mesh, plan) for mesh in meshes for plan in TEMPLATES]
        cases += [
            Case(step, anywhere[i % len(anywhere)], f"{RANDOM}-{i}", seed) for i in range(random)
        ]
    return cases
