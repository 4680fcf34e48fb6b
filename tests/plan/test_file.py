"""Plan files: what is written is what is read, and nothing else gets in."""

import json
import os
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cfp
from cfp import templates
from cfp.errors import CfpError
from cfp.plan import Plan

from .steps import mesh_of, mlp_args, mlp_step, model, random_plan


@pytest.fixture(scope="module")
def mlp_plan() -> Plan:
    return templates.megatron(mlp_step, *mlp_args(), mesh=mesh_of(2, 2))


@pytest.fixture
def saved(mlp_plan: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    mlp_plan.save(path)
    return path


def same(plan: Plan, other: Plan) -> bool:
    return (
        plan.arguments == other.arguments
        and plan.results == other.results
        and plan.segments == other.segments
        and plan.values == other.values
        and plan.environment == other.environment
    )


@pytest.mark.parametrize("seed", range(3))
def test_round_trip(seed: int, tmp_path: Path) -> None:
    name, shape = [("gpt", (2, 2)), ("llama", (4,)), ("moe", (2, 1, 2))][seed]
    plan = random_plan(name, shape, seed)
    plan.save(tmp_path / "plan.json")
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh_of(*shape))
    assert same(plan, loaded)
    step, args = model(name)
    bound = loaded.bind(step, *args)
    assert bound.bound is not None
    assert plan.bound is not None
    assert bound.bound.layouts == plan.bound.layouts
    assert same(plan, bound)


def test_round_trip_of_explicit_layouts(tmp_path: Path) -> None:
    plan = templates.alpa(mlp_step, *mlp_args(), mesh=mesh_of(2))
    assert plan.values
    assert plan.notes
    plan.save(tmp_path / "plan.json")
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh_of(2)).bind(mlp_step, *mlp_args())
    assert same(plan, loaded)
    assert plan.bound is not None
    assert loaded.bound is not None
    assert plan.bound.layouts == loaded.bound.layouts
    assert loaded.notes == plan.notes

    def other(params: Any, x: Any, y: Any) -> Any:
        return mlp_step(params, x * 2, y)

    with pytest.raises(CfpError, match=r"another step: its equation \d+ is"):
        cfp.load(tmp_path / "plan.json", mesh=mesh_of(2)).bind(other, *mlp_args())


def test_held_arguments_stay_held(tmp_path: Path) -> None:
    pins = {"params.down": P("x")}
    plan = templates.data_parallel(mlp_step, *mlp_args(), mesh=mesh_of(2), pins=pins)
    plan.save(tmp_path / "plan.json")
    loaded = cfp.load(tmp_path / "plan.json", mesh=mesh_of(2))
    assert [t.path for t in loaded.arguments if t.held] == ["params['down']"]
    assert same(plan, loaded.bind(mlp_step, *mlp_args()))


@pytest.mark.parametrize("template", ["fsdp", "alpa"])
def test_the_order_of_a_files_entries_does_not_matter(template: str, tmp_path: Path) -> None:
    plan = getattr(templates, template)(mlp_step, *mlp_args(), mesh=mesh_of(2))
    plan.save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    for part in ("arguments", "results"):
        document[part] = dict(reversed(document[part].items()))
    (tmp_path / "plan.json").write_text(json.dumps(document))
    bound = cfp.load(tmp_path / "plan.json", mesh=mesh_of(2)).bind(mlp_step, *mlp_args()).bound
    assert plan.bound is not None
    assert bound is not None
    assert bound.layouts == plan.bound.layouts


def test_a_spec_edited_by_hand_counts(saved: Path) -> None:
    document = json.loads(saved.read_text())
    document["arguments"]["params['up']"]["spec"] = ["x"]
    saved.write_text(json.dumps(document))
    plan = cfp.load(saved, mesh=mesh_of(2, 2)).bind(mlp_step, *mlp_args())
    assert plan.in_shardings[0]["up"].spec == P("x")
    cfp.verify(mlp_step, *mlp_args(), plan=plan)


def test_a_loaded_plan_works_without_binding_it_first(saved: Path) -> None:
    plan = cfp.load(saved, mesh=mesh_of(2, 2))
    args = mlp_args()
    step = plan.jit(mlp_step)
    params, loss = step(*plan.place(*args))
    expected, expected_loss = jax.jit(mlp_step)(*args)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(params["up"], expected["up"], rtol=1e-5)
    with pytest.raises(CfpError, match=r"`in_shardings` needs the step.*plan.bind\(step"):
        _ = plan.in_shardings


def test_readable(saved: Path) -> None:
    document = json.loads(saved.read_text())
    assert document["format"] == "cfp-plan"
    assert document["mesh"] == {"x": 2, "y": 2}
    assert document["arguments"]["params['up']"] == {
        "shape": [8, 32],
        "dtype": "float32",
        "spec": [None, "y"],
    }
    blocks = [block for segment in document["segments"] for block in segment["blocks"]]
    assert blocks[0]["split"] == {"x": "batch", "y": "output features"}
    assert "params['up'][8,32] at steps.py" in blocks[0]["seed"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((4,), r"is a plan for a mesh of x=2 x y=2; this one is x=4"),
        ((4, 2), r"this one is x=4 x y=2"),
    ],
)
def test_another_mesh(saved: Path, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(CfpError, match=reason):
        cfp.load(saved, mesh=mesh_of(*shape))


def test_another_step(saved: Path) -> None:
    plan = cfp.load(saved, mesh=mesh_of(2, 2))
    with pytest.raises(CfpError, match=r"`params\['bias'\]` is float32\[32\] in the plan and"):
        plan.bind(mlp_step, *mlp_args(hidden=64))
    with pytest.raises(CfpError, match=r"the plan has `params\['bias'\]` and 1 more, the step has"):
        plan.bind(lambda params, x, y: x @ params["up"], {"up": np.ones((8, 4))}, *mlp_args()[1:])

    def deeper(params: Any, x: Any, y: Any) -> Any:
        return mlp_step(params, x @ params["up"] @ params["down"], y)

    with pytest.raises(CfpError, match=r"another step: it has 1 segments, the step has|segment 0"):
        plan.bind(deeper, *mlp_args())


def test_another_version(saved: Path) -> None:
    document = json.loads(saved.read_text())
    for version, way in ((3, "Make the plan again"), (5, "Upgrade cfp")):
        saved.write_text(json.dumps(document | {"version": version}))
        reason = rf"a plan of version {version}; this cfp reads version 4\. {way}"
        with pytest.raises(CfpError, match=reason):
            cfp.load(saved, mesh=mesh_of(2, 2))


def test_another_environment_is_named_and_allowed(saved: Path) -> None:
    document = json.loads(saved.read_text())
    document["environment"] |= {"jax": "0.9.0", "device_kind": "TPU v5"}
    saved.write_text(json.dumps(document))
    with pytest.warns(cfp.PlanWarning, match=r"jax 0.9.0, here .*; device_kind TPU v5, here cpu"):
        cfp.load(saved, mesh=mesh_of(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cfp.PlanWarning)
        cfp.verify(mlp_step, *mlp_args(), plan=cfp.load(saved, mesh=mesh_of(2, 2)))


TRACE = Path(tempfile.gettempdir()) / "cfp_plan_ran_code"


class Boom:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {TRACE}",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged: it is not JSON"),
        (b"{", "is damaged: it is not JSON"),
        (b"\xff\xfe\x00", "is damaged: it is not JSON"),
        (pickle.dumps(Boom()), "is damaged: it is not JSON"),
        (b"[1]", "is not a plan of cfp: it holds a list"),
        (b"{}", "is not a plan of cfp: its `format` is not"),
        (b'{"format": "other", "version": 1}', 'its `format` is not "cfp-plan"'),
        (b"[" * 100_000, "is damaged"),
    ],
)
def test_damaged_or_hostile_files(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(CfpError, match=reason):
        cfp.load(path, mesh=mesh_of(2, 2))
    assert not TRACE.exists()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CfpError, match=r"Cannot read .*nowhere.json: No such file"):
        cfp.load(tmp_path / "nowhere.json", mesh=mesh_of(2, 2))
    with pytest.raises(CfpError, match=r"Cannot write the plan to .*: No such file"):
        random_plan("gpt", (2,), 0).save(tmp_path / "nowhere" / "plan.json")


def test_every_field_is_checked(saved: Path) -> None:
    """A value replaced by something of another kind is refused by name, or makes no difference."""
    text = saved.read_text()
    refused: list[str] = []
    for path in paths(json.loads(text)):
        for strange in (None, -1, 3.5, "nonsense", [{}], {"a": 1}, True):
            document = json.loads(text)
            put(document, path, strange)
            saved.write_text(json.dumps(document))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", cfp.PlanWarning)
                    cfp.load(saved, mesh=mesh_of(2, 2))
            except CfpError as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert all(message.startswith(str(saved)) for message in refused)


def paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    if isinstance(node, dict):
        items = list(node.items())
    elif isinstance(node, list):
        items = list(enumerate(node))
    else:
        items = []
    for key, child in items[:3]:
        found += paths(child, (*at, key))
    if not at:
        for key, child in items[3:]:
            found += paths(child, (key,))
    return found


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value
