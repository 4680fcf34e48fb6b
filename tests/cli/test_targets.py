"""What a plan was made for need not be said again, and what is said otherwise is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cfp
from cfp import templates
from cfp.cli.targets import choose_target, keep_target, load_target, model_config
from cfp.errors import CfpError
from cfp.plan.file import read_document
from cfp.plan.target import Target, target_of
from tests.plan.steps import mesh_of, mlp_args, mlp_step

GIVEN: dict[str, Any] = {"size": "small", "layers": 2, "hidden": 128, "scan": True, "seq": None}


def test_a_plan_keeps_its_target(tmp_path: Path) -> None:
    kept = keep_target("gpt", GIVEN)
    assert kept.show() == "gpt --size small --layers 2 --hidden 128 --scan"
    assert dict(kept.options)["vocab"] == 1024, "what was not given is kept too"
    plan = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    replace(plan, target=kept).save(tmp_path / "plan.json")
    assert target_of(read_document(tmp_path / "plan.json")) == kept
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh_of(2))
    assert loaded.bind(mlp_step, *mlp_args()).target == kept
    assert "It is for `gpt --size small --layers 2 --hidden 128 --scan`." in loaded.show()


def test_a_file_without_one_still_loads(tmp_path: Path) -> None:
    plan = templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2))
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text().replace(' "target": null,\n', "")
    assert "target" not in text
    (tmp_path / "plan.json").write_text(text)
    assert cfp.load(tmp_path / "plan.json", mesh=mesh_of(2)).target is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (None, {}),
        ("gpt", {}),
        ("gpt", GIVEN),
        (None, {"vocab": 1024}),
        ("gpt", {"layers": 2, "checkpoint": False}),
    ],
)
def test_what_agrees_is_what_the_plan_was_made_for(
    name: str | None, options: dict[str, Any]
) -> None:
    found, chosen = choose_target(name, options, keep_target("gpt", GIVEN), "plan.json")
    assert (found, model_config(found, chosen)) == ("gpt", model_config("gpt", GIVEN))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "gpt",
            {"size": "tiny", "layers": 4, "hidden": 128},
            "plan.json is a plan for gpt with --size small --layers 2, not --size tiny --layers 4: "
            "leave the options out, or plan again with them.",
        ),
        (None, {"checkpoint": True}, "gpt with no --checkpoint, not --checkpoint: leave"),
        ("bert", {}, "plan for `gpt --size small --layers 2 --hidden 128 --scan`, not for bert:"),
    ],
)
def test_what_differs_is_named(name: str | None, options: dict[str, Any], said: str) -> None:
    with pytest.raises(CfpError) as refused:
        choose_target(name, options, keep_target("gpt", GIVEN), "plan.json")
    assert said in str(refused.value)


def test_your_own_function_is_the_judge() -> None:
    kept = keep_target("my.train:make_step", {})
    assert choose_target(None, {}, kept, "plan.json") == ("my.train:make_step", {})
    assert choose_target("my.other:make", {}, kept, "plan.json") == ("my.other:make", {})
    assert choose_target("gpt", {"layers": 2}, kept, "plan.json") == ("gpt", {"layers": 2})
    assert choose_target("my:f", {}, keep_target("gpt", {}), "plan.json") == ("my:f", {})
    with pytest.raises(CfpError, match=r"plan\.json does not say which step it is for: name it"):
        choose_target(None, {}, None, "plan.json")


@pytest.mark.parametrize("name", ["dropout", "learning_rate", "clip_norm", "layers", "size", "x"])
def test_a_strange_option_in_a_file_is_refused(name: str) -> None:
    kept = Target("gpt", (("size", "tiny"), (name, "strange")), ())
    with pytest.raises(CfpError):
        load_target(*choose_target(None, {}, kept, "plan.json"))
