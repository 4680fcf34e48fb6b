"""Plans whose segments compute again: less memory and more work, by the compiler's own figures."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cfp
from cfp import analyze
from cfp.errors import CfpError
from cfp.plan import Plan, load
from cfp.plan.assemble import assemble_plan
from cfp.profile.programs.boundary import find_interfaces
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Option
from cfp.segments.keep import Keep
from tests.profile.cases import mesh

ROWS, LAYERS = 2048, 4  # activations are a hundred times the parameters


def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for up, down in params:
            wide = jnp.tanh(h @ up)
            h = h + (jnp.sin(wide) * wide) @ down
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value


def arguments() -> tuple[Any, ...]:
    random = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return jnp.asarray(random.normal(0, 0.1, shape), jnp.float32)

    return [(weight(16, 64), weight(64, 16)) for _ in range(LAYERS)], weight(ROWS, 16)


@cache
def plan_with(*keeps: Keep) -> Plan:
    """A plan that splits the batch; segment i keeps `keeps[i % len(keeps)]`."""
    args = arguments()
    analysis = analyze(step, *args, mesh_shape=(2,))
    kinds = find_kinds(analysis)
    options = [
        Option((0,) * len(kinds[segment.kind].strategies), keep=keeps[segment.index % len(keeps)])
        for segment in analysis.segments
    ]
    interfaces = find_interfaces(analysis, kinds)
    return assemble_plan(step, analysis, mesh((2,)), interfaces, options, name="test")


def flops(plan: Plan) -> float:
    return float(plan.compiled().cost_analysis()["flops"])


def test_keeping_less_needs_less_memory_and_computes_more() -> None:
    """The compiler undoes none of it: it would merge what is computed again with what was."""
    written, inputs = plan_with(Keep.AS_WRITTEN), plan_with(Keep.INPUTS)
    assert inputs.memory_bytes() < 0.7 * written.memory_bytes()
    own = 2 * ROWS / 2 * 16 * 64 * LAYERS  # on one of two devices: a product of each layer
    assert flops(inputs) >= flops(written) + own
    cfp.verify(step, *arguments(), plan=inputs)


def test_levels_are_mixed() -> None:
    mixed = plan_with(Keep.CONTRACTIONS, Keep.AS_WRITTEN, Keep.INPUTS)
    assert mixed.memory_bytes() < plan_with(Keep.AS_WRITTEN).memory_bytes()
    assert mixed.memory_bytes() > plan_with(Keep.INPUTS).memory_bytes()
    cfp.verify(step, *arguments(), plan=mixed)


def test_a_file_says_what_is_kept(tmp_path: Path) -> None:
    plan = plan_with(Keep.INPUTS)
    plan.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json", mesh=mesh((2,)))
    assert [segment.keep for segment in again.segments] == [Keep.INPUTS] * len(again.segments)
    assert again.bind(step, *arguments()).memory_bytes() == plan.memory_bytes()
    assert "keeps inputs" in plan.show()
    text = (tmp_path / "plan.json").read_text()
    assert '"keep": "inputs"' in text
    (tmp_path / "old.json").write_text(text.replace('   "keep": "inputs",\n', ""))
    old = load(tmp_path / "old.json", mesh=mesh((2,)))
    assert {segment.keep for segment in old.segments} == {Keep.AS_WRITTEN}
    (tmp_path / "wrong.json").write_text(text.replace('"keep": "inputs"', '"keep": "some"'))
    with pytest.raises(CfpError, match='one of "as written"'):
        load(tmp_path / "wrong.json", mesh=mesh((2,)))
