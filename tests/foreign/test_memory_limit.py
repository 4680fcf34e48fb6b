"""Steps of other libraries under a memory limit that binds: planned, within it, and verified.

Activations are most of the memory, so that only recomputation saves enough of it. Each model is
planned once, on one device, where there is no training state to split further, and a third as many
programs to measure.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cfp
from cfp.models import config, make_step
from cfp.profile import Effort
from cfp.segments.keep import Keep
from tests.profile.cases import mesh

from . import MODELS

EFFORT = Effort(warmups=0, repeats=1, wave=8)  # times decide nothing here but which plan is first
LIMIT = 0.75  # of what the step needs as it is written
BATCH = 32


def scanned() -> Any:
    """Layers under `lax.scan`, with dropout."""
    return make_step(config("gpt", layers=4, hidden=32, heads=4, ffn=128, batch=BATCH, scan=True))


STEPS: dict[str, Callable[[], Any]] = {
    "hf_gpt2": lambda: MODELS["hf_gpt2"](batch=BATCH),
    "nnx": lambda: MODELS["nnx"](batch=BATCH),
    "equinox": lambda: MODELS["equinox"](batch=BATCH),
    "scan": scanned,
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_it_computes_again_what_does_not_fit(make: Callable[[], Any], tmp_path: Path) -> None:
    step, args = make()
    where = mesh((1,))
    whole = cfp.templates.data_parallel(step, *args, mesh=where).memory_bytes()
    plan = cfp.plan(
        step,
        *args,
        mesh=where,
        memory_limit=LIMIT * whole,
        audit=False,
        effort=EFFORT,
        isolate=False,
        cache_dir=tmp_path,
    )
    assert plan.memory_bytes() <= LIMIT * whole
    keeps = {segment.keep for segment in plan.segments}
    assert keeps & {Keep.CONTRACTIONS, Keep.INPUTS}
    cfp.verify(step, *args, plan=plan)
