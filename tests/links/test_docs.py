"""The snippets of docs/links.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cfp.links import shipped_links
from cfp.links.file import read_links
from cfp.links.link import REQUIRED

TEXT = (Path(__file__).parents[2] / "docs" / "links.md").read_text()


def test_the_python_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(snippet, {})
    assert capsys.readouterr().out.startswith("data: 2 devices over ib_400g")


def test_the_file_of_the_docs_is_read() -> None:
    (file,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    head, _, table = file.partition("[link.x.all-reduce.8]")
    body = table.partition("\n")[2]
    whole = head + "".join(f"[link.x.{kind}.8]\n{body}" for kind in REQUIRED)
    assert read_links(whole, "links.md")["x"].scope == "network"


def test_the_docs_name_every_link() -> None:
    for name in shipped_links():
        assert f"`{name}`" in TEXT
