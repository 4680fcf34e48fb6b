"""Folders that killed processes leave behind are removed; those of living ones are not."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import cfp
from cfp.profile.runners.scratch import OWNER, PREFIX, scratch_folder

# without `import cfp`, which takes JAX's two seconds
CHILD = """
import sys, tempfile, time, types
for name, path in (("cfp", sys.argv[1]), ("cfp.profile", sys.argv[1] + "/profile")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from cfp.profile.runners.scratch import scratch_folder
tempfile.tempdir = sys.argv[2]
with scratch_folder("worker") as folder:
    (folder / "log").write_text("words")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_killed_process_leaves_its_folder_to_the_next_one(root: Path) -> None:
    arguments = [sys.executable, "-c", CHILD, str(Path(cfp.__file__).parent), str(root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with scratch_folder("worker"):
            assert (left / "log").exists()  # its process lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (left / "log").exists()
    with scratch_folder("compare") as mine:
        assert [*root.iterdir()] == [mine]
    assert [*root.iterdir()] == []


def test_what_is_not_certainly_left_behind_stays(root: Path) -> None:
    without_owner = root / f"{PREFIX}worker-a"
    without_owner.mkdir()
    target = root / "precious"
    target.mkdir()
    (target / OWNER).touch()
    (root / f"{PREFIX}worker-b").symlink_to(target)
    (root / f"{PREFIX}worker-c").write_text("a file")
    before = {*root.iterdir()}
    with scratch_folder("worker") as mine, scratch_folder("worker") as other:
        assert mine != other
        assert {*root.iterdir()} == before | {mine, other}
    assert {*root.iterdir()} == before
    assert (target / OWNER).exists()


def test_another_users_folder_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = root / f"{PREFIX}worker-d"
    stale.mkdir()
    (stale / OWNER).touch()
    uid = stale.stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    with scratch_folder("worker"):
        assert stale.exists()
    monkeypatch.setattr("os.getuid", lambda: uid)
    with scratch_folder("worker"):
        assert not stale.exists()
