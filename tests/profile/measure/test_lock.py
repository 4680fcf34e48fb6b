"""The lock between planners: one at a time, and free when its holder dies."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

import cfp
from cfp.errors import CfpError
from cfp.profile.measure import lock
from cfp.profile.measure.lock import Holder, StillHeld, exclusive

# without `import cfp`, which takes JAX's two seconds
CHILD = """
import sys, tempfile, time, types
for name, path in (("cfp", sys.argv[1]), ("cfp.profile", sys.argv[1] + "/profile")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from cfp.profile.measure.lock import exclusive
tempfile.tempdir = sys.argv[2]
with exclusive("devices", waiting=lambda holder: print("waiting", flush=True)):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def child(folder: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", CHILD, str(Path(cfp.__file__).parent), str(folder)]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_waits_for_another_process_until_it_is_killed(folder: Path) -> None:
    with child(folder) as process:
        assert said(process) == "held"
        calls: list[tuple[str, float]] = []
        killer = threading.Timer(0.3, process.kill)
        killer.start()
        with exclusive("devices", waiting=lambda who: calls.append((who, time.monotonic()))):
            waited_s = time.monotonic() - calls[0][1]
        killer.join()
        assert len(calls) == 1
        assert waited_s > 0.1
        who = (
            rf"process {process.pid} on {socket.gethostname()} \(.*python.*\) since \d+-\d+-\d+ \S+"
        )
        assert re.fullmatch(who, calls[0][0], re.DOTALL)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"since": 1e99, "pid": 1}'])
def test_a_holder_that_does_not_say_who_it_is(folder: Path, text: str) -> None:
    said: list[str] = []
    with exclusive("devices"):
        (path,) = folder.glob("cfp-*.lock")
        path.write_text(text)
        with (
            pytest.raises(StillHeld),
            exclusive("devices", waiting=said.append, until=time.monotonic()),
        ):
            pass
        assert said == ["a process that does not say who it is"]
        path.write_text(json.dumps(asdict(Holder(12, "boxa", "cfp plan gpt", 0.0))))
        with (
            pytest.raises(StillHeld, match=r"process 12 on boxa \(cfp plan gpt\) since 19"),
            exclusive("devices", until=time.monotonic()),
        ):
            pass
    assert path.read_text() == ""  # nobody has it


def test_interrupted_while_waiting(folder: Path) -> None:
    with exclusive("devices"), child(folder) as process:
        assert said(process) == "waiting"
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == -signal.SIGINT


def test_free_again_after_use_and_after_an_error() -> None:
    with pytest.raises(ValueError, match="mine"), exclusive("devices"):
        raise ValueError("mine")
    with exclusive("devices", waiting=lambda who: pytest.fail("it is free")):
        pass


def test_names_are_separate() -> None:
    with exclusive("a"), exclusive("b", waiting=lambda who: pytest.fail("another name")):
        pass


def test_threads_take_turns() -> None:
    inside: list[int] = []

    def enter() -> None:
        with exclusive("devices"):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside


def test_a_lock_file_removed_while_one_waits(folder: Path) -> None:
    with exclusive("devices"), child(folder) as process:
        assert said(process) == "waiting"
        (path,) = folder.glob("cfp-*.lock")
        path.rename(folder / "gone")  # as a cleaner of /tmp does
        with exclusive("devices", waiting=lambda who: pytest.fail("the new file is free")):
            (folder / "gone").unlink()


def test_a_lock_that_cannot_be_taken(folder: Path) -> None:
    with exclusive("devices"):
        (path,) = folder.glob("cfp-*.lock")
    path.unlink()
    path.mkdir()
    with pytest.raises(CfpError, match=r"cannot be taken .* set TMPDIR"), exclusive("devices"):
        pass


def test_a_holder_pauses_for_those_who_wait_and_for_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr(lock.time, "sleep", pauses_s.append)
    with exclusive("devices"):
        pass
    assert pauses_s == []
    with ExitStack() as stack:
        with exclusive("devices"):
            process = stack.enter_context(child(folder))
            assert said(process) == "waiting"
        assert len(pauses_s) == 1
        assert said(process) == "held"
