"""Who a process is: by options, by launcher, or alone; and what is refused."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

import jax
import pytest

from cfp.cluster import join, ports
from cfp.cluster.join import Membership
from cfp.errors import CfpError

LAUNCHERS = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_MCA_orte_hnp_uri",
    "SLURM_STEP_NODELIST",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "KUBERNETES_SERVICE_HOST",
    "JOB_COMPLETION_INDEX",
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def others(*given: object) -> tuple[bool, int | None]:
    return Membership(*given)._others()  # type: ignore[arg-type]


def test_alone() -> None:
    assert others() == (False, None)
    with Membership().joined(4, "cpu") as team:
        assert team is None


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://a:1"}, (True, 4)),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, (False, 1)),
        (
            {"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"},
            (True, 8),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (False, None)),  # a shell of sbatch: no step
        ({"KUBERNETES_SERVICE_HOST": "a", "JOB_COMPLETION_INDEX": "1"}, (True, None)),
        ({"KUBERNETES_SERVICE_HOST": "a"}, (False, None)),
    ],
)
def test_launchers(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], found: tuple[bool, int | None]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert others() == found


def test_open_mpi_that_jax_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says who a process is, and not where process 0 is."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with pytest.raises(CfpError, match="give all processes --coordinator HOST:PORT"):
        others()
    assert Membership("a:1")._filled() == Membership("a:1", 4, 2)
    assert Membership("a:1", 3, 1)._filled() == Membership("a:1", 3, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a:1", 2, None), "go together"),
        ((None, 2, 0), "go together"),
        ((None, 2, None), "go together"),
        (("a:1", 2, 2), "they are 0 to 1"),
        (("a", 2, 0), "write HOST:PORT"),
        ((":1", 2, 0), "write HOST:PORT"),
        (("127.0.0.1:abc", 2, 0), "'127.0.0.1:abc': write HOST:PORT"),
        (("127.0.0.1:0", 2, 0), "a port from 1 to 65535"),
        (("127.0.0.1:65536", 2, 0), "a port from 1 to 65535"),
        (("127.0.0.1:²", 2, 0), "a port from 1 to 65535"),
        (("127.0.0.1:" + 5000 * "9", 2, 0), "a port from 1 to 65535"),
    ],
)
def test_what_is_refused(given: tuple[object, ...], said: str) -> None:
    with pytest.raises(CfpError, match=said):
        others(*given)


def test_a_mesh_must_divide() -> None:
    membership = Membership("127.0.0.1:1", 3, 0)
    with (
        pytest.raises(CfpError, match="4 devices does not divide among 3"),
        membership.joined(4, "cpu"),
    ):
        pass


def test_a_port_that_is_taken(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX is not even asked: it may end in a segmentation fault."""
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **named: pytest.fail("asked"))
    with ports.listen("127.0.0.1", free_port):
        said = (
            f"Process 0 cannot listen on 127.0.0.1:{free_port}: Address already in use. Give all "
            "processes a --coordinator with another port."
        )
        with pytest.raises(CfpError, match=re.escape(said)):
            Membership(f"127.0.0.1:{free_port}", 2, 0)._initialize()


@pytest.mark.parametrize(
    ("coordinator", "bound"),
    [
        ("127.0.0.1:{}", "127.0.0.1:{}"),
        ("localhost:{}", "127.0.0.1:{}"),
        ("192.0.2.1:{}", "[::]:{}"),  # not this machine's: someone passes on to it what comes there
        ("hosta:{}", "[::]:{}"),
        ("0.0.0.0:{}", "[::]:{}"),
        (None, None),
    ],
)
def test_the_coordinator_listens_where_it_must(
    free_port: int, monkeypatch: pytest.MonkeyPatch, coordinator: str | None, bound: str | None
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **named: asked.update(named))
    given = coordinator and coordinator.format(free_port)
    Membership(given, 2, 0)._initialize()
    assert asked["coordinator_bind_address"] == (bound and bound.format(free_port))


def test_who_waits_in_vain_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    """JAX aborts the process, with a stack trace, when the others do not come."""
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(join, "JOIN_S", 0)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **named: ended.wait(10))
    Membership(f"127.0.0.1:{free_port}", 2, 1)._initialize()
    assert codes == [1]
    assert capsys.readouterr().err == (
        f"cfp: Cannot join the other processes at 127.0.0.1:{free_port}: not all are there after "
        "0 s. Start all of them, each with its own --process-id, and let them reach process 0.\n"
    )
