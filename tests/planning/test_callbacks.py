"""Steps that call back to the host: prints stay in the step and out of measured programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import cfp
from cfp.analysis import analyze
from cfp.errors import CfpError
from cfp.layouts import Layouts
from cfp.profile import Effort
from cfp.profile.measure.full_step import whole_step
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.key import program_digest
from cfp.profile.programs.kinds import Option
from cfp.profile.programs.lower import check_callbacks, lower
from cfp.templates import data_parallel
from cfp.trace import trace
from cfp.trace.callbacks import DEBUG, only_for_debugging
from tests.profile.cases import mesh
from tests.segments.run_parts import run_parts

Body = Callable[[Any, Any], Any]


def training(body: Body, after: Callable[[Any], Any] = lambda loss: None) -> Callable[..., Any]:
    """A step whose forward pass is `body`, under `jax.value_and_grad`."""

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(body(w, x) ** 2)

        value, gradient = jax.value_and_grad(loss)(w)
        after(value)
        return w - 0.1 * gradient, value

    return step


def quiet(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def printing(w: Any, x: Any) -> Any:
    jax.debug.print("in {}", jnp.sum(x).astype(jnp.int32))
    y = jnp.tanh(x @ w)
    jax.debug.print("out {}", (1000 * jnp.mean(y)).astype(jnp.int32))
    return y


def ordered(w: Any, x: Any) -> Any:
    jax.debug.print("first", ordered=True)
    jax.debug.callback(lambda s: print(f"second {s}"), jnp.sum(x).astype(jnp.int32), ordered=True)
    return jnp.tanh(x @ w)


def looping(w: Any, x: Any) -> Any:
    def layer(h: Any, i: Any) -> Any:
        jax.debug.print("layer {}", i)
        return jnp.tanh(h @ w), None

    return jax.lax.scan(layer, x, jnp.arange(3))[0]


def branching(w: Any, x: Any) -> Any:
    def positive(y: Any) -> Any:
        jax.debug.print("positive", ordered=True)
        return y

    y = jnp.tanh(x @ w)
    return jax.lax.cond(jnp.sum(x) > 0, positive, lambda y: -y, y)


def report(loss: Any) -> None:
    jax.debug.callback(lambda loss: print(f"loss {loss:.2f}"), loss)


def args() -> tuple[Any, Any]:
    return 0.1 * jnp.ones((8, 8)), jnp.ones((16, 8))


STEPS = {
    "under grad": (training(printing, report), ["in 128", "loss 0.44", "out 664"]),
    "in order": (training(ordered), ["first", "second 128"]),
    "in a loop": (training(looping), ["layer 0", "layer 1", "layer 2"]),
    "in a branch": (training(branching), ["positive"]),
}


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    jax.effects_barrier()
    return sorted(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_prints_under_a_plan(
    name: str, devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    step, expected = STEPS[name]
    plan = data_parallel(step, *args(), mesh=mesh((devices,)))
    planned = plan.jit(step, donate_argnums=())
    assert printed(capsys) == []
    for _ in range(2):
        _, loss = planned(*plan.place(*args()))
        assert printed(capsys) == expected
    assert np.allclose(loss, step(*args())[1], rtol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_measured_programs_are_without(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    step, _ = STEPS[name]
    analysis = analyze(step, *args(), mesh_shape=(2,))
    check_callbacks(analysis.graph)
    for kind in find_kinds(analysis):
        layouts = kind.layouts(Option((0,) * len(kind.strategies)))
        for cut, lie in zip(kind.extracts, layouts, strict=True):
            assert not only_for_debugging(cut.graph)
            assert jax.export.deserialize(bytearray(lower(cut, lie, mesh((2,)))))
    bound = data_parallel(step, *args(), mesh=mesh((2,))).known("test")
    whole: Layouts = bound.layouts
    assert jax.export.deserialize(bytearray(lower(whole_step(bound.analysis), whole, mesh((2,)))))
    assert printed(capsys) == []


def test_prints_are_no_part_of_what_is_measured() -> None:
    """Neither they nor what is computed for them, nor results that only they read."""
    programs = []
    for body in (quiet, printing):
        (kind,) = find_kinds(analyze(training(body), *args(), mesh_shape=(2,)))
        (cut,) = kind.extracts
        programs.append(program_digest(cut))
    assert programs[0] == programs[1]


def test_what_is_printed_in_a_branch_is_not_in_the_key() -> None:
    def body(text: str) -> Body:
        def positive(y: Any) -> Any:
            jax.debug.print(text)
            return y

        return lambda w, x: jax.lax.cond(jnp.sum(x) > 0, positive, lambda y: -y, jnp.tanh(x @ w))

    digests = [
        program_digest(find_kinds(analyze(training(one), *args(), mesh_shape=(2,)))[0].extracts[0])
        for one in (body("one"), body("other"))
    ]
    assert digests[0] == digests[1]


def test_what_is_only_for_debugging() -> None:
    graph = trace(training(printing, report), *args())
    found = only_for_debugging(graph)
    assert len([e for e in found if graph.equations[e].primitive in DEBUG]) == 3
    assert len(found) > 3, "what is computed for a print alone"
    for e in found:
        for value in graph.equations[e].outputs:
            assert value not in graph.returned
            assert found.issuperset(graph.readers[value])


def test_a_step_that_prints_is_cut_like_any(capsys: pytest.CaptureFixture[str]) -> None:
    step, expected = STEPS["under grad"]
    analysis = analyze(step, *args(), mesh_shape=(2,))
    results = run_parts(analysis.graph, analysis.segmentation.parts, jax.tree.leaves(args()))
    assert printed(capsys) == expected
    assert np.allclose(results[1], step(*args())[1])


def test_a_step_that_prints_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, expected = STEPS["under grad"]
    plan = cfp.plan(
        step,
        *args(),
        mesh=mesh((2,)),
        isolate=False,
        effort=Effort(warmups=1, repeats=3),
        cache_dir=tmp_path,
        audit=1,
        progress=False,
    )
    assert printed(capsys) == []
    plan.jit(step)(*plan.place(*args()))
    assert printed(capsys) == expected


# --- callbacks that the step needs -----------------------------------------------------------


def doubled(x: Any) -> Any:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda a: 2 * np.asarray(a), shape, x)


def counted(x: Any) -> Any:
    return io_callback(lambda: np.float32(2), jax.ShapeDtypeStruct((), jnp.float32), ordered=True)


NEEDED: dict[str, Body] = {
    "pure_callback": lambda w, x: doubled(x) @ w,
    "io_callback": lambda w, x: (x * counted(x)) @ w,
    "in a branch": lambda w, x: jax.lax.cond(jnp.sum(x) > 0, doubled, lambda x: -x, x) @ w,
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_step_that_needs_a_callback_is_refused_by_its_line(name: str, tmp_path: Path) -> None:
    step = training(NEEDED[name])
    primitive = "io_callback" if name == "io_callback" else "pure_callback"
    where = "counted" if name == "io_callback" else "doubled"
    options: dict[str, Any] = {"mesh": mesh((2,)), "isolate": False, "progress": False}
    refused = (
        rf"The step calls back to the host \(`{primitive}` at test_callbacks.py:\d+ \({where}\)\)"
        r".*Compute it in JAX, or outside the step"
    )
    with pytest.raises(CfpError, match=refused):
        cfp.plan(step, *args(), cache_dir=tmp_path, **options)
    plan = data_parallel(step, *args(), mesh=mesh((2,)))
    with pytest.raises(CfpError, match=refused):
        cfp.compare(step, *args(), plans={"data_parallel": plan}, **options)


@pytest.mark.parametrize("name", NEEDED)
def test_but_it_runs_under_the_plan_of_a_template(name: str) -> None:
    step = training(NEEDED[name])
    plan = data_parallel(step, *args(), mesh=mesh((2,)))
    _, loss = plan.jit(step)(*plan.place(*args()))
    assert np.allclose(loss, np.mean((2 * 0.1 * 8) ** 2), rtol=1e-5)
