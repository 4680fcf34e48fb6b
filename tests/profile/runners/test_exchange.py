"""Sessions that exchange what they compile, as the workers of several processes do."""

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from cfp.cluster.wire import MAC_BYTES, encode, sign
from cfp.profile.runners.exchange import Exchange, Handover, open_exchange
from cfp.profile.runners.job import Compiled, Failed, Job
from cfp.profile.runners.session import Session
from tests.profile.runners.test_session import make_job, step_job

TIMEOUT_S = 60.0
KEY = b"what only the processes know"


class Kept:
    """The store of JAX's distributed runtime, as far as it is used here."""

    def __init__(self) -> None:
        self.content: dict[str, str | bytes] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str | bytes, allow_overwrite: bool = False) -> None:
        with self._changed:
            if key in self.content and not allow_overwrite:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
            self.content[key] = value
            self._changed.notify_all()

    key_value_set_bytes = key_value_set

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> str | bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.content, TIMEOUT_S)
            return self.content[key]

    def size(self) -> int:
        return sum(len(value) for value in self.content.values())


class Process:
    """A session and what it said."""

    def __init__(self, mesh: Mesh, kept: Kept) -> None:
        self.answers: dict[str, Compiled | Failed] = {}
        exchange = Exchange(kept, [*mesh.devices.flat], KEY)
        self.session = Session(mesh, 1, self._hear, exchange=exchange)

    def _hear(self, answer: Compiled | Failed) -> None:
        self.answers[answer.key] = answer

    def wait(self, *keys: str) -> list[Compiled | Failed]:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.answers.keys() >= set(keys):
            assert time.monotonic() < deadline, self.answers
            time.sleep(0.01)
        return [self.answers[key] for key in keys]


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:2]), ("x",))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads, for every program that is really compiled."""
    found: list[str] = []
    real = jax.stages.Lowered.compile

    def count(self: jax.stages.Lowered, *given: Any, **named: Any) -> Any:
        found.append(threading.current_thread().name)
        return real(self, *given, **named)

    monkeypatch.setattr(jax.stages.Lowered, "compile", count)
    return found


def both(mesh: Mesh, jobs: list[Job], kept: Kept) -> list[Process]:
    processes = [Process(mesh, kept) for _ in range(2)]
    for process in processes:
        for job in jobs:
            process.session.submit(job)
    return processes


def test_each_program_is_compiled_once(mesh: Mesh, compiled: list[str]) -> None:
    jobs = [step_job(mesh, f"job {size}", size) for size in (16, 24, 32, 40)]
    for process in both(mesh, jobs, kept := Kept()):
        answers = process.wait(*(job.key for job in jobs))
        assert all(isinstance(answer, Compiled) for answer in answers), answers
        memories = [answer.memory for answer in answers if isinstance(answer, Compiled)]
        assert len({memory.argument_bytes for memory in memories}) == len(jobs)
        for job in jobs:
            for _ in range(2):  # what goes round does, too
                assert isinstance(process.session.run(job.key), float)
    assert len(compiled) == len(jobs)
    assert sum("claimed" in key for key in kept.content) == len(jobs)


def test_who_compiles_says_how_long_it_took(mesh: Mesh) -> None:
    job = step_job(mesh, "job", 48)
    answers = [process.wait("job")[0] for process in both(mesh, [job], Kept())]
    seconds = sorted(answer.seconds for answer in answers if isinstance(answer, Compiled))
    assert seconds[0] == 0 < seconds[1]


def test_what_does_not_compile_has_failed_in_both(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: jax.stages.Lowered) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: too much\nand more")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    for process in both(mesh, [step_job(mesh, "job")], Kept()):
        (answer,) = process.wait("job")
        assert answer == Failed("job", "out of memory: too much")


@pytest.mark.parametrize("broken", ["serialize", "deserialize_and_load"])
def test_each_for_itself_where_programs_cannot_travel(
    mesh: Mesh, compiled: list[str], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise ValueError("not here")

    monkeypatch.setattr(serialize_executable, broken, refuse)
    for process in both(mesh, [step_job(mesh, "job", 56)], Kept()):
        assert isinstance(process.wait("job")[0], Compiled)
        assert isinstance(process.session.run("job"), float)
    assert len(compiled) == 2


class Tampered(Kept):
    """A store in which a stranger puts something in the place of what it is given."""

    def __init__(self, change: Callable[[Kept, str, bytes], bytes]) -> None:
        super().__init__()
        self._change = change

    def key_value_set_bytes(  # type: ignore[override]
        self, key: str, value: bytes, allow_overwrite: bool = False
    ) -> None:
        self.key_value_set(key, self._change(self, key, value), allow_overwrite)


class Payload:
    """Whoever unpickles it says so."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("It was unpickled.",)


def _anothers(kept: Kept, key: str, value: bytes) -> bytes:
    """What was signed, for another program."""
    return sign(KEY, b"1/another", value[MAC_BYTES:]) + value[MAC_BYTES:]


CHANGES: dict[str, Callable[[Kept, str, bytes], bytes]] = {
    "pickle": lambda kept, key, value: pickle.dumps(Payload()),
    "unsigned": lambda kept, key, value: value[MAC_BYTES:],
    "altered": lambda kept, key, value: value[:-1] + bytes([value[-1] ^ 1]),
    "cut": lambda kept, key, value: value[:MAC_BYTES],
    "empty": lambda kept, key, value: b"",
    "another's": _anothers,
    "failure": lambda kept, key, value: bytes(MAC_BYTES) + encode(Handover(failed="no")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_stranger_wrote_is_not_used(
    mesh: Mesh,
    compiled: list[str],
    change: Callable[[Kept, str, bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each process compiles for itself."""

    def load(*given: Any, **named: Any) -> Any:
        pytest.fail("It was loaded.")

    monkeypatch.setattr(serialize_executable, "deserialize_and_load", load)
    for process in both(mesh, [step_job(mesh, "job", 56)], Tampered(change)):
        assert isinstance(process.wait("job")[0], Compiled)
    assert len(compiled) == 2
    assert "Someone has tampered with the program" in caplog.text


def test_programs_that_differ_are_not_exchanged(mesh: Mesh, compiled: list[str]) -> None:
    """Were processes to make different programs of one job, each would run its own."""
    kept = Kept()
    scales: list[Callable[[Any], Any]] = [lambda x: (x * 2,), lambda x: (x * 3,)]
    fill = step_job(mesh, "job").inputs[0]
    for scale in scales:
        process = Process(mesh, kept)
        job = make_job(mesh, "job", scale, ((fill, ("x",)),), (("x",),))
        process.session.submit(job)
        assert isinstance(process.wait("job")[0], Compiled)
    assert len(compiled) == 2


def test_what_is_dropped_is_freed_and_can_come_again(mesh: Mesh, compiled: list[str]) -> None:
    job = step_job(mesh, "job", 64)
    processes = both(mesh, [job], kept := Kept())
    for process in processes:
        process.wait("job")
    full = kept.size()
    for process in processes:
        process.session.drop(["job"])
        process.answers.clear()
    assert kept.size() < full / 10
    for process in processes:
        process.session.submit(job)
    for process in processes:
        assert isinstance(process.wait("job")[0], Compiled)
        assert isinstance(process.session.run("job"), float)
    assert len(compiled) == 2


def test_one_process_has_no_exchange() -> None:
    assert open_exchange(jax.devices(), KEY) is None
