"""Compiling and running in one process; also what every runner does, in the simplest of them."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfp.profile.runners import session
from cfp.profile.runners.executable import POOL, make_input, reason, repeat_pool
from cfp.profile.runners.in_process import InProcessRunner
from cfp.profile.runners.job import Compiled, Failed, Fill, Job, Memory
from cfp.profile.runners.local_devices import one_device
from cfp.profile.runners.runner import Runner

SIZES = [f"{part}_size_in_bytes" for part in ("argument", "output", "temp", "alias")]


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


@pytest.fixture
def runner(mesh: Mesh) -> Iterator[InProcessRunner]:
    with InProcessRunner(mesh, compile_threads=2) as runner:
        yield runner


def make_job(
    mesh: Mesh,
    key: str,
    function: Callable[..., Any],
    inputs: tuple[tuple[Fill, tuple[str | None, ...]], ...],
    outputs: tuple[tuple[str | None, ...], ...],
    feedback: Mapping[int, int] | None = None,
) -> Job:
    def place(dims: tuple[str | None, ...]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*dims))

    jitted = jax.jit(
        function,
        in_shardings=tuple(place(dims) for _, dims in inputs),
        out_shardings=tuple(place(dims) for dims in outputs),
    )
    shapes = [jax.ShapeDtypeStruct(fill.shape, jnp.dtype(fill.dtype)) for fill, _ in inputs]
    module = bytes(jax.export.export(jitted)(*shapes).serialize())
    return Job(key, key, module, tuple(fill for fill, _ in inputs), dict(feedback or {}))


@pytest.mark.parametrize("said", [None, SimpleNamespace(**dict.fromkeys(SIZES, 0))])
def test_a_backend_that_does_not_say_what_a_program_needs(
    said: Any, mesh: Mesh, runner: InProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing known is a failure, and never a program that needs no memory."""
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: said)
    (answer,) = compiled(runner, step_job(mesh, "step")).values()
    assert isinstance(answer, Failed)
    assert answer.reason == "this backend does not say how much memory a program needs"


def test_one_device_alone_is_the_first_process_s(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others say at once that it is compiled, and take no time; no device of theirs runs."""
    one = one_device(mesh)
    assert one is not None
    assert [*one.devices.flat] == [mesh.devices.flat[0]]
    job = replace(step_job(one, "alone"), alone=True)
    with InProcessRunner(mesh) as runner:
        runner.submit(job)
        (done,) = runner.finished(60)
        assert isinstance(done, Compiled)
        assert done.memory.argument_bytes == 2 * 32 * 32 * 4, "none of it is split"
        assert float(cast(float, runner.run("alone", 60))) > 0
        assert runner.time_shares(["alone"], 60) == {}
    monkeypatch.setattr(session, "one_device", lambda mesh: None)
    with InProcessRunner(mesh) as runner:
        runner.submit(job)
        assert runner.finished(60) == [Compiled("alone", 0.0, Memory(0, 0, 0, 0))]
        assert runner.run("alone", 60) == 0.0
        assert runner.time_shares(["alone"], 60) == {}
        runner.drop(["alone"])


def step_job(mesh: Mesh, key: str, size: int = 32) -> Job:
    """A step with state that goes round, and a collective."""

    def step(w: Any, x: Any) -> Any:
        return w + 1, jnp.sum(x @ w)

    fill = Fill((size, size), "float32", "normal")
    return make_job(mesh, key, step, ((fill, ("x",)), (fill, (None, "x"))), (("x",), ()), {0: 0})


def compiled(runner: Runner, *jobs: Job) -> dict[str, Compiled | Failed]:
    """Submits jobs and waits for them all."""
    for job in jobs:
        runner.submit(job)
    answers: dict[str, Compiled | Failed] = {}
    give_up = time.monotonic() + 60
    while len(answers) < len(jobs):
        assert time.monotonic() < give_up
        answers |= {answer.key: answer for answer in runner.finished(10)}
    return answers


def seconds(answer: Compiled | Failed) -> float:
    assert isinstance(answer, Compiled), answer
    return answer.seconds


def test_runs_are_timed_and_state_goes_round(mesh: Mesh, runner: InProcessRunner) -> None:
    answer = compiled(runner, step_job(mesh, "step"))["step"]
    assert isinstance(answer, Compiled)
    assert answer.seconds > 0
    assert answer.memory.argument_bytes == 2 * 32 * 32 * 4 // 2
    assert answer.memory.aliased_bytes == 32 * 32 * 4 // 2  # the state's buffers are used again
    entry = runner._session._entries["step"]
    for _ in range(10):
        time_s = runner.run("step", 10)
        assert isinstance(time_s, float)
        assert 0 < time_s < 10
    assert entry.inputs is not None
    start = make_input(entry.job.inputs[0], entry.inputs[0].sharding)
    np.testing.assert_allclose(entry.inputs[0], np.asarray(start) + 10, atol=1e-5)


def test_the_same_program_is_compiled_once(mesh: Mesh, runner: InProcessRunner) -> None:
    other = step_job(mesh, "other", size=16)
    answers = compiled(runner, *(step_job(mesh, key) for key in "abc"), other)
    assert sum(seconds(answers[key]) > 0 for key in "abc") == 1
    assert seconds(answers["other"]) > 0
    assert all(isinstance(runner.run(key, 10), float) for key in "abcacb")
    runner.drop(["a", "b", "c"])
    assert seconds(compiled(runner, step_job(mesh, "d"))["d"]) > 0
    assert seconds(compiled(runner, step_job(mesh, "e"))["e"]) == 0


def test_names_and_locations_do_not_matter(mesh: Mesh, runner: InProcessRunner) -> None:
    fill = Fill((8, 8), "float32", "normal")

    def one(x: Any) -> Any:
        return (jnp.sin(x) + 1,)

    def two(y: Any) -> Any:
        z = jnp.sin(y)
        return (z + 1,)

    jobs = {
        "first": make_job(mesh, "first", one, ((fill, ("x",)),), (("x",),)),
        "again": make_job(mesh, "again", two, ((fill, ("x",)),), (("x",),)),
        "other": make_job(mesh, "other", one, ((fill, ("y",)),), (("x",),)),
    }
    times_s = {key: seconds(compiled(runner, job)[key]) for key, job in jobs.items()}
    assert times_s["again"] == 0
    assert times_s["first"] > 0
    assert times_s["other"] > 0


def test_what_is_wrong_fails_in_one_line(mesh: Mesh, runner: InProcessRunner) -> None:
    good = step_job(mesh, "good")
    fill = good.inputs[0]
    wrong = [
        Job("bytes", "", b"nonsense", (), {}),
        Job("inputs", "", good.module, (fill, Fill((3,), "float32", "normal")), {}),
        Job("round", "", good.module, good.inputs, {1: 0}),
        make_job(mesh, "place", lambda x: (x + 1,), ((fill, ("x",)),), (("y",),), {0: 0}),
    ]
    answers = compiled(runner, *wrong, good)
    assert isinstance(answers.pop("good"), Compiled)
    reasons = {key: answer.reason for key, answer in answers.items() if isinstance(answer, Failed)}
    assert set(reasons) == set(answers)
    assert all(reason and "\n" not in reason for reason in reasons.values())
    assert "the program takes" in reasons["inputs"]
    assert "cannot be fed back" in reasons["round"]
    assert "cannot be fed back" in reasons["place"]
    assert runner.run("bytes", 10) == answers["bytes"]
    with pytest.raises(KeyError):
        runner.run("unheard of", 10)


def test_what_a_gpus_allocator_says_is_one_sentence() -> None:
    said = (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 66.20GiB with allocator "
        "GPU_0_bfc on device 0. [executable_name='jit_program'] [tf-allocator-allocation-error='']"
    )
    asked = "trying to allocate 66.20GiB with allocator GPU_0_bfc on device 0"
    assert reason(RuntimeError(said)) == f"out of memory: {asked}"


def test_out_of_memory_is_recognised(mesh: Mesh, runner: InProcessRunner) -> None:
    def big(x: Any) -> Any:
        return (jnp.broadcast_to(x[:, None, None], (2**20, 2**20, 64)),)

    fill = Fill((2**20,), "float32", "normal")
    job = make_job(mesh, "big", big, ((fill, ()),), ((),))
    answer = compiled(runner, job, step_job(mesh, "small"))["big"]
    assert isinstance(answer, Compiled)
    assert answer.memory.output_bytes >= 2**48
    failed = runner.run("big", 10)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("out of memory: allocating ")
    assert runner._session._entries["big"].inputs is None
    assert isinstance(runner.run("small", 10), float)


def test_what_is_fed_back_is_not_copied(mesh: Mesh, runner: InProcessRunner) -> None:
    """Two arguments of one shape come back in the other order: each has the buffer of its own
    predecessor, and its value."""

    def step(w: Any, m: Any, x: Any) -> Any:
        return jnp.sum(x), m * 2, w + 1

    fill = Fill((64, 64), "float32", "normal")
    inputs = ((fill, ("x",)), (fill, ("x",)), (fill, ("x",)))
    job = make_job(mesh, "swapped", step, inputs, ((), ("x",), ("x",)), {1: 1, 2: 0})
    compiled(runner, job)
    text = runner._session.text("swapped")
    assert " copy(" not in text
    assert "{0}: (0, {}, may-alias), {1}: (1, {}, may-alias)" in text.partition("\n")[0]
    before = make_input(fill, NamedSharding(mesh, PartitionSpec("x")))
    assert isinstance(runner.run("swapped", 10), float)
    w, m, _ = runner._session._entries["swapped"].inputs or ()
    np.testing.assert_array_equal(w, np.asarray(before) + 1)
    np.testing.assert_array_equal(m, np.asarray(before) * 2)


def test_inputs_of_others_make_room(mesh: Mesh, runner: InProcessRunner) -> None:
    """Two programs find room beside each other, three do not: the inputs of one are made again."""
    jobs = [step_job(mesh, key, size=size) for key, size in (("a", 16), ("b", 24), ("c", 32))]
    answers = compiled(runner, *jobs)
    needs = {key: one.memory for key, one in answers.items() if isinstance(one, Compiled)}
    own = runner._session
    own._memory_bytes = (needs["b"].argument_bytes + needs["c"].total_bytes) / session.ROOM

    def held() -> str:
        return "".join(key for key in "abc" if own._entries[key].inputs is not None)

    for key, there in (("a", "a"), ("b", "ab"), ("c", "bc"), ("b", "bc")):
        assert isinstance(runner.run(key, 10), float)
        assert held() == there
    own._memory_bytes = needs["c"].total_bytes - 1
    failed = runner.run("c", 10)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("out of memory: it needs ")


def test_a_whole_step_keeps_its_inputs_until_another_program_comes(
    mesh: Mesh, runner: InProcessRunner
) -> None:
    step = replace(step_job(mesh, "step"), frees=True)
    compiled(runner, step, step_job(mesh, "other"))
    entry = runner._session._entries["step"]
    runner.run("step", 10)
    assert entry.inputs is not None
    runner.run("other", 10)
    assert entry.inputs is None
    runner.run("step", 10)
    compiled(runner, step_job(mesh, "next", size=24))
    assert entry.inputs is None


@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (3, POOL), (2, POOL + 1), (300, 401, 5)])
def test_a_device_repeats_values_as_the_host_does(shape: tuple[int, ...]) -> None:
    pool = np.arange(POOL, dtype=np.int32)
    assert np.array_equal(repeat_pool(jnp.asarray(pool), shape), np.resize(pool, shape))


def test_inputs_are_filled_as_asked(mesh: Mesh) -> None:
    placed = NamedSharding(mesh, PartitionSpec("x", "y"))

    def values(dtype: str, kind: Any, low: int = 0, high: int = 0) -> Any:
        fill = Fill((512, 256), dtype, kind, low, high)
        first, again = make_input(fill, placed), make_input(fill, placed)
        assert first.dtype == jnp.dtype(dtype)
        assert first.sharding == placed
        assert np.array_equal(np.asarray(first), np.asarray(again))
        return np.asarray(first).astype(np.float64)

    for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        normal = values(dtype, "normal")
        assert np.isfinite(normal).all()
        assert abs(normal.mean()) < 0.01
        assert 0.05 < normal.std() < 0.2
        positive = values(dtype, "positive")
        assert positive.min() >= 0.09
        assert positive.max() <= 1
    assert set(np.unique(values("int32", "integers", 3, 7))) == {3, 4, 5, 6}
    assert values("uint32", "bits").max() > 2**31
    assert set(np.unique(values("bool", "bools"))) == {0, 1}
    for shape in ((), (0, 4)):
        made = make_input(Fill(shape, "float32", "normal"), NamedSharding(mesh, PartitionSpec()))
        assert made.shape == shape


def test_nothing_under_way_is_not_waited_for(mesh: Mesh, runner: InProcessRunner) -> None:
    start = time.monotonic()
    assert runner.finished(60) == []
    runner.submit(step_job(mesh, "dropped"))
    runner.drop(["dropped"])
    assert runner.finished(60) == []
    assert time.monotonic() - start < 30
    assert set(compiled(runner, step_job(mesh, "dropped"))) == {"dropped"}


def test_traces_tell_the_shares(mesh: Mesh, runner: InProcessRunner) -> None:
    compiled(runner, step_job(mesh, "step"), Job("bad", "", b"", ()))
    shares = runner.time_shares(["step", "bad"], 60)
    assert set(shares) == {"step"}
    assert shares["step"].compute_s > 0


def test_a_profiler_in_use_means_no_traces(
    mesh: Mesh, runner: InProcessRunner, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(runner, step_job(mesh, "step"))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with (
        jax.profiler.trace(tmp_path, profiler_options=options),
        caplog.at_level(logging.WARNING, "cfp"),
    ):
        assert isinstance(runner.run("step", 60), float)
        before = runner._session._entries["step"].inputs
        assert before is not None
        first = before[0]
        assert runner.time_shares(["step"], 60) == {}
    assert "profiler did not start" in caplog.text
    after = runner._session._entries["step"].inputs
    assert after is not None
    assert after[0] is not first, "it ran, and its state went round: others wait for it"
