"""Rules give every tensor its own sharding, whatever the paths and shardings are."""

from __future__ import annotations

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from cfp import templates
from cfp.errors import CfpError
from cfp.export import find_rules, match_rules, slash_path
from cfp.layouts import to_spec
from tests.foreign import MODELS
from tests.plan.steps import mesh_of, mlp_args, mlp_step, model

STEPS = st.sampled_from(["a", "b", "layers", "0", "1", "12", "w.x", "up"])
PATHS = st.lists(STEPS, min_size=1, max_size=4).map("/".join)
SPECS = st.sampled_from([P(), P("x"), P(None, "x"), P(("x", "y"))])


@given(st.dictionaries(PATHS, SPECS, min_size=1, max_size=12))
def test_the_first_rule_that_matches_is_right(specs: dict[str, P]) -> None:
    rules = find_rules(specs)
    assert {path: match_rules(rules, path) for path in specs} == specs
    assert len(rules) <= len(specs) + 1


def test_layers_share_a_rule() -> None:
    specs = {f"params/layers/{i}/{name}": P(None, "x") for i in range(9) for name in ("up", "q")}
    specs |= {f"params/layers/{i}/scale": P() for i in range(9)}
    specs["params/layers/3/q"] = P("x")
    rules = find_rules(specs)
    assert rules[0] == (r"(^|/)up$", P(None, "x"))
    assert (r"^params/layers/3/q$", P("x")) in rules
    assert rules[-1] == (".*", P())
    with pytest.raises(CfpError, match="No rule matches `w`"):
        match_rules(rules[:-1], "w")


@pytest.mark.parametrize("name", ["linen", "nnx", "hf_gpt2"])
def test_paths_are_those_that_jax_writes(name: str) -> None:
    _, args = MODELS[name](layers=1, abstract=True)
    for key, _ in jax.tree_util.tree_flatten_with_path(args)[0]:
        path = "state" + jax.tree_util.keystr(key)
        assert slash_path(path) == "state/" + jax.tree_util.keystr(key, simple=True, separator="/")


def test_odd_paths() -> None:
    assert slash_path("""a['it\\'s']["x"].b[<flat index 2>]""") == "a/it\\'s/x/b/2"
    assert slash_path("args[1]['w']") == "args[1]/w"
    assert slash_path("a]") == "a]"


def test_of_a_plan() -> None:
    plan = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    assert plan.to_rules("params") == (
        (r"(^|/)bias$", P("x")),
        (r"(^|/)down$", P("x")),
        (r"(^|/)up$", P(None, "x")),
        (".*", P()),
    )
    with pytest.raises(CfpError, match="The step has no argument `w`: it takes params, x, y"):
        plan.to_rules("w")


def test_rules_of_a_model_are_few() -> None:
    step, args = model("gpt")
    plan = templates.megatron(step, *args, mesh=mesh_of(2, 2))
    names = plan.mesh.axis_names
    rules = plan.to_rules()
    for tensor in plan.arguments:
        assert match_rules(rules, slash_path(tensor.path)) == to_spec(tensor.layout, names)
    assert len(rules) < len(plan.arguments) / 2
