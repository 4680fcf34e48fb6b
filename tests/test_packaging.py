"""The distribution: its name, its addresses, and a README that works on a package index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
        assert link.startswith(f"{HOME}/blob/main/"), link
        assert (ROOT / link.removeprefix(f"{HOME}/blob/main/").partition("#")[0]).is_file(), link
