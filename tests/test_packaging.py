"""The distribution: its name, its addresses, a README that works on a package index, a wheel and an
sdist that install into an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import jax

import cfp
from cfp.version import VERSION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]
LINK = re.compile(r"\]\(([^)]+)\)")


def test_the_name_is_ours_and_the_import_is_cfp() -> None:
    assert PROJECT["name"] == "cfp-jax"
    assert PROJECT["scripts"] == {"cfp": "cfp.cli:main"}
    assert cfp.__version__ == VERSION


def test_every_address_is_of_one_place() -> None:
    assert all(address.startswith(HOME) for address in PROJECT["urls"].values())
    assert (ROOT / PROJECT["urls"]["Changelog"].removeprefix(f"{HOME}/blob/main/")).is_file()
    assert (ROOT / PROJECT["urls"]["Documentation"].removeprefix(f"{HOME}/tree/main/")).is_dir()


def test_links_of_the_readme_work_outside_the_repository() -> None:
    links = LINK.findall((ROOT / "README.md").read_text())
    assert len(links) > 5
    for link in links:
        kind = "raw" if link.endswith(".png") else "blob"  # a picture, or a page about a file
        assert link.startswith(f"{HOME}/{kind}/main/"), link
        path = link.removeprefix(f"{HOME}/{kind}/main/").partition("#")[0]
        assert (ROOT / path).is_file(), link


def run(*command: object, cwd: Path) -> str:
    """What a command prints, run outside of this repository's environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = list(map(str, command))
    ran = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_wheel_and_sdist_install_into_an_empty_environment(tmp_path: Path) -> None:
    """The environment gets this one's packages by a path, which holds no `cfp`: nothing is
    downloaded, and what it imports is what the wheel brought."""
    dist, env, empty = tmp_path / "dist", tmp_path / "env", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "hatchling", "build", "-d", dist, cwd=ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path / "again",
        cwd=source,
    )
    (again,) = (tmp_path / "again").glob("*.whl")
    assert contents(again) == contents(wheel), "the sdist has all that the wheel is made of"

    venv.create(env, with_pip=False)
    python, cfp_command = env / "bin" / "python", env / "bin" / "cfp"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", wheel, cwd=empty)
    where = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=empty
        ).strip()
    )
    (where / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    said = run(cfp_command, "--version", cwd=empty)
    assert said.startswith(f"cfp, version {VERSION}, from {where / 'cfp'} (python 3.")
    assert f", jax {jax.__version__})" in said
    found = run(cfp_command, "analyze", "gpt", "--layers", "1", "--mesh", "2", "--json", cwd=empty)
    assert '"distinct_segments"' in found


def contents(wheel: Path) -> set[tuple[str, int]]:
    """The files of a wheel with their checksums; its RECORD lists the others."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            (one.filename, one.CRC) for one in archive.infolist() if "RECORD" not in one.filename
        }
