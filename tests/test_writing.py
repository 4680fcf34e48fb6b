"""Files are written whole or not at all, and never where a link leads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cfp.errors import CfpError
from cfp.writing import write_whole


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text in ("first", "second: ü"):
        write_whole(path, text, "plan")
        assert path.read_text(encoding="utf-8") == text
    assert os.listdir(tmp_path) == ["plan.json"]


def test_the_umask_decides_who_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "plan.json", "", "plan")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    link = tmp_path / "report.html"
    link.symlink_to(victim)
    write_whole(link, "new", "report")
    assert victim.read_text() == "kept"
    assert not link.is_symlink()
    assert link.read_text() == "new"


def test_a_scratch_name_that_is_taken_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the name guessed, the link that lies there would still be refused, and left alone."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".cfp-guessed").symlink_to(victim)
    with pytest.raises(CfpError, match=r"Cannot write the plan to .*: File exists\."):
        write_whole(tmp_path / "plan.json", "new", "plan")
    assert victim.read_text() == "kept"
    assert not (tmp_path / "plan.json").exists()


def test_names_are_never_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = Path.replace

    def spy(self: Path, target: Path) -> Path:
        seen.append(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    for _ in range(3):
        write_whole(tmp_path / "plan.json", "", "plan")
    assert len(set(seen)) == 3
    assert all(len(name) >= 32 for name in seen)


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(CfpError, match=r"Cannot write the plan to .*: Is a directory\."):
        write_whole(tmp_path / "plan.json", "text", "plan")
    with pytest.raises(CfpError, match="No such file or directory"):
        write_whole(tmp_path / "nowhere" / "plan.json", "text", "plan")
    assert os.listdir(tmp_path) == ["plan.json"]


def test_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(CfpError, match="it is a device, not a file"):
            write_whole(path, "text", "plan")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
