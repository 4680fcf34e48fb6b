"""Keys: other programs, layouts and machines have others; the same have the same in any process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cfp.profile.programs.key import _lines, job_key, key_of, program_digest
from cfp.profile.programs.kinds import Option
from cfp.profile.programs.machine import Machine
from cfp.profile.programs.requests import (
    Resharding,
    extract_requests,
    idle_request,
    resharding_request,
)
from tests.profile.cases import foreign, kinds, mesh, model, named, two_products

MACHINE = Machine(
    platform="cpu",
    device_kind="cpu",
    host="2 cores of a kind",
    mesh_shape=(4,),
    processes=(0, 0, 0, 0),
    jax="0.10.2",
    jaxlib="0.10.2",
    flags=("--xla_a=1",),
    settings=(("jax_use_shardy_partitioner", "True"),),
)


def layer_digest(**options: Any) -> str:
    return program_digest(kinds(model("gpt", **options))[1].extracts[0])


@pytest.mark.parametrize(
    "change",
    [{"hidden": 128}, {"dtype": "bfloat16"}, {"batch": 16}, {"dropout": 0.2}, {"dropout": 0.0}],
    ids=str,
)
def test_other_programs_have_other_digests(change: dict[str, Any]) -> None:
    assert layer_digest(**change) != layer_digest()


def test_depth_and_mesh_are_not_the_program() -> None:
    assert layer_digest(layers=4) == layer_digest()
    assert layer_digest(mesh_shape=(2,)) == layer_digest()


def test_equal_fingerprints_need_not_be_equal_programs() -> None:
    with_, without = model("gpt"), model("gpt", dropout=0.0)
    fingerprints = [a.distinct_segments[1].fingerprint for a in (with_, without)]
    assert fingerprints[0] == fingerprints[1]
    assert program_digest(kinds(with_)[1].extracts[0]) != program_digest(
        kinds(without)[1].extracts[0]
    )


def test_constants_and_what_goes_round_count() -> None:
    (extract,) = kinds(two_products())[0].extracts
    all_donated = replace(extract.graph, donated=frozenset(range(len(extract.graph.inputs))))
    assert program_digest(replace(extract, graph=all_donated)) != program_digest(extract)
    value, constant = next(iter(extract.graph.constants.items()))
    other = replace(extract.graph, constants={**extract.graph.constants, value: constant + 1})
    assert program_digest(replace(extract, graph=other)) != program_digest(extract)


@pytest.mark.parametrize(
    "change",
    [
        {"platform": "gpu"},
        {"device_kind": "NVIDIA H200"},
        {"host": "4 cores of a kind"},
        {"stand_ins": 1},
        {"mesh_shape": (2, 2)},
        {"processes": (0, 0, 1, 1)},
        {"hosts": (0, 0, 1, 1)},
        {"network": "another"},
        {"jax": "0.10.3"},
        {"jaxlib": "0.10.3"},
        {"flags": ()},
        {"settings": (("jax_use_shardy_partitioner", "False"),)},
        {"environment": (("NCCL_ALGO", "Ring"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_machines_have_other_keys(change: dict[str, Any]) -> None:
    other = replace(MACHINE, **change)
    (layouts,) = kinds(two_products())[0].layouts(Option((0, 0)))
    assert job_key(other, "program", layouts) != job_key(MACHINE, "program", layouts)
    assert key_of(other, "reshard") != key_of(MACHINE, "reshard")


def test_every_field_of_a_machine_was_changed_above() -> None:
    (mark,) = test_other_machines_have_other_keys.pytestmark
    assert {name for change in mark.args[1] for name in change} == {f.name for f in fields(Machine)}


def test_other_layouts_have_other_keys() -> None:
    (kind,) = kinds(two_products())
    every = [Option((a, b)) for a in range(3) for b in range(3)]
    keys = {job_key(MACHINE, "program", kind.layouts(option)[0]) for option in every}
    assert len(keys) == 9
    (layouts,) = kind.layouts(named(kind, "batch", "output features"))
    moved = [
        replace(layouts, inputs=((1,), *layouts.inputs[1:])),
        replace(layouts, outputs=((1,), *layouts.outputs[1:])),
        replace(layouts, values={**layouts.values, 5: (1,)}),
        replace(layouts, uses={**layouts.uses, (0, 0): (1,)}),
        replace(layouts, sums={5: (1,)}),
    ]
    assert len({job_key(MACHINE, "program", lie) for lie in (layouts, *moved)}) == 6
    assert job_key(MACHINE, "program", layouts) != job_key(MACHINE, "other", layouts)


def test_requests_are_named_by_what_they_measure() -> None:
    four = mesh((4,))
    kind = kinds(two_products())[0]
    option = named(kind, "batch", "output features")
    (request,) = extract_requests(MACHINE, four, kind, option, kind.layouts(option))
    assert request.key == job_key(
        MACHINE, program_digest(kind.extracts[0]), kind.layouts(option)[0]
    )
    assert request.arguments == 5 + 4
    assert request.name == "segment 0: batch, output features"
    moves = [
        Resharding((8, 4), "float32", (0,), (1,)),
        Resharding((8, 4), "float32", (1,), (0,)),
        Resharding((8, 4), "bfloat16", (0,), (1,)),
        Resharding((4, 8), "float32", (0,), (1,)),
    ]
    keys = {resharding_request(MACHINE, four, move).key for move in moves}
    keys |= {idle_request(MACHINE, four, count).key for count in (1, 2)}
    assert len(keys) == 6


def test_the_text_of_a_program_has_no_address() -> None:
    names = ("control_flow", "odd_arguments", "conv")
    steps = [*(foreign(name) for name in names), model("gpt"), model("moe", layers=4)]
    for analysis in steps:
        for kind in kinds(analysis):
            for extract in kind.extracts:
                text = "\n".join(_lines(extract))
                assert not re.search(r"0x[0-9a-f]{4,}", text)


def keys_here() -> list[str]:
    machine = Machine.of(mesh((4,)))
    found = []
    for analysis in (model("gpt"), foreign("conv"), foreign("control_flow")):
        for kind in kinds(analysis):
            option = Option((0,) * len(kind.strategies))
            for extract, layouts in zip(kind.extracts, kind.layouts(option), strict=True):
                found.append(job_key(machine, program_digest(extract), layouts))
    return found


def test_keys_are_the_same_in_another_process() -> None:
    """The other process has another hash seed, and another number of virtual devices."""
    flags = os.environ["XLA_FLAGS"]
    assert "device_count=8" in flags
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4242",
        "XLA_FLAGS": flags.replace("device_count=8", "device_count=4"),
    }
    code = "from tests.profile.programs.test_key import keys_here; print(*keys_here())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == keys_here()


def test_machines_of_meshes() -> None:
    assert Machine.of(mesh((4,))) == Machine.of(mesh((4,)))
    assert Machine.of(mesh((4,))) != Machine.of(mesh((2, 2)))
    assert Machine.of(mesh((4,))).processes == (0, 0, 0, 0)
