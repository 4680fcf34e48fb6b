"""Who a process is: by options, by launcher, or alone; and what is refused."""

from __future__ import annotations

import pytest

from cfp.cluster.join import Membership
from cfp.errors import CfpError

LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE",
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
        ({"OMPI_COMM_WORLD_SIZE": "4"}, (True, 4)),
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a:1", 2, None), "go together"),
        ((None, 2, 0), "go together"),
        ((None, 2, None), "go together"),
        (("a:1", 2, 2), "they are 0 to 1"),
        (("a", 2, 0), "write HOST:PORT"),
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
