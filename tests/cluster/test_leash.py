"""What a launcher started ends when it is killed, also behind a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cfp.cluster import leash
from tests.profile.runners.test_process import gone, until

FOLLOWS = """
import os, time
from cfp.cluster.leash import follow
follow()
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_kill_9_of_the_launcher_ends_all_that_it_started() -> None:
    """Process 0 is ours, behind a shell that stays; process 1 knows nothing of launchers."""
    other = 'if [ "$CFP_PROCESS_ID" = 1 ]; then exec sleep 600; fi'
    script = f"echo $$; {other}; '{sys.executable}' -c '{FOLLOWS}'; true"
    command = [sys.executable, "-m", "cfp", "launch", "--processes", "2", "--", "sh", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        pids = [int(launcher.stdout.readline()) for _ in range(2)]
        pids.append(int(launcher.stderr.readline().removeprefix("[1] ")))
        assert not any(map(gone, pids))
        launcher.send_signal(signal.SIGKILL)
        assert until(lambda: all(map(gone, pids)), 10), [pid for pid in pids if not gone(pid)]


@pytest.mark.parametrize("value", [None, "", "x", "99999:1", "0:1", ":", "-1:5"])
def test_without_a_launcher_nothing_is_followed(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(leash.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(leash.VARIABLE, value)
    assert leash._inherited() is None


def test_a_number_that_is_another_pipes_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with leash.leash() as (end, value):
        monkeypatch.setenv(leash.VARIABLE, value)
        assert leash._inherited() == end
        other, more = os.pipe()
        os.dup2(other, end)
        assert leash._inherited() is None
        os.close(other)
        os.close(more)


def test_a_signal_during_a_fork_comes_after_it() -> None:
    """Another thread may take the signal: the handler runs in this one all the same."""
    came: list[int] = []
    ends = threading.Event()
    other = threading.Thread(target=ends.wait, daemon=True)
    other.start()
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with leash.forking():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pthread_kill(other.ident or 0, signal.SIGTERM)
            time.sleep(0.05)
            assert came == []
        assert came
        assert set(came) == {signal.SIGTERM}
    finally:
        signal.signal(signal.SIGTERM, before)
        ends.set()


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX is there in tests alone
def test_what_was_started_can_be_ended() -> None:
    """Signals that are put off for the launcher are not put off for what it starts."""
    with leash.forking() as first:
        child = subprocess.Popen([sys.executable, "-c", "input()"], preexec_fn=first)
    child.terminate()
    assert child.wait(10) == -signal.SIGTERM
