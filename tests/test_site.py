"""The documentation: it builds without a warning, its snippets run, its commands exist, and every
public name and command has an example that runs."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
import pytest
from docs import cli as reference

import cfp
from cfp import planner
from cfp.cli import cli
from tests.test_readme import PROJECT

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# these run in tests of their own, or show what a stage is made of
ELSEWHERE = {"plans.md": "tests/cli", "profiling.md": "tests/profile", "architecture.md": "itself"}
ELSEWHERE |= {"gpus.md": "tests/gpu, where there is one"}
# classes that functions return, and what is no function
NO_EXAMPLE = {"Analysis", "Checked", "Collective", "ComparedPlan", "Comparison", "Plan"}
NO_EXAMPLE |= {"CfpError", "PlanWarning", "__version__"}


def fences(path: Path, language: str) -> Iterator[str]:
    for found in FENCE.finditer(path.read_text()):
        if found[1] == language:
            yield found[2]


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "api.html").read_text()
    assert all(f'id="cfp.{name}"' in page for name in ("jit.jit", "planner.plan"))
    for built in tmp_path.glob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', built.read_text()
        )
        assert not loaded, f"{built.name} loads {loaded[0]}: pages must open without a network"


def test_the_reference_of_commands_is_what_they_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run python -m docs.cli"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """README's project. Its step is planned once, for real; other steps of the pages get a template
    in place of a plan: that such steps are planned is tested elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for room in ("runners.shared_decision", "api"):
        monkeypatch.setattr(f"cfp.profile.{room}.can_isolate", lambda mesh: False)
    names: dict[str, Any] = {}
    exec(compile(PROJECT, "train.py", "exec"), names)
    plans: list[cfp.Plan] = []
    run_stages = planner.run_stages

    def run_once(task: Any, *rest: Any) -> cfp.Plan:
        if task.step is not names["step"]:
            return cfp.templates.zero1(task.step, *task.args, mesh=task.mesh)
        plans[:] = plans or [run_stages(task, *rest)]
        return plans[0]

    monkeypatch.setattr(planner, "run_stages", run_once)
    return names


def test_snippets_run(project: dict[str, Any]) -> None:
    """Page by page, each with a step, its arguments and a mesh at hand."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    for page in PAGES:
        if page.name in ELSEWHERE:
            assert all(compile(snippet, page.name, "exec") for snippet in fences(page, "python"))
            continue
        step, args = project["make_step"]()
        names = {"jax": jax, "cfp": cfp, "step": step, "args": args, "mesh": mesh}
        for snippet in fences(page, "python"):
            text = re.sub(r'budget="\d+[sm]"', "budget=300", snippet)  # however busy the machine is
            exec(compile(text, page.name, "exec"), names)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The lines of all pages and help texts that start with `cfp`, as words."""
    for page in (*PAGES, ROOT / "README.md"):
        for _, block in FENCE.findall(page.read_text()):
            for line in block.splitlines():
                if re.match(r"\s*(srun |mpirun .*)?cfp [a-z]", line) and "..." not in line:
                    yield f"{page.name}: {line.strip()}", shlex.split(line, comments=True)


def test_commands_of_the_pages_exist() -> None:
    seen = set()
    for where, words in command_lines():
        while "cfp" in words:
            words = words[words.index("cfp") + 1 :]
            if words[0] in ("COMMAND", "[OPTIONS]"):
                break
            own = words if words[0] == "launch" else words[: (*words, "--").index("--")]
            command = cli.get_command(click.Context(cli), own[0])
            assert command is not None, where
            seen.add(own[0])
            try:
                command.make_context(own[0], list(own[1:]))
            except click.ClickException as error:
                pytest.fail(f"{where}: {error.format_message()}")
    assert {"plan", "export", "check", "compare", "explain"} <= seen


def test_every_command_has_a_line_to_run() -> None:
    for path, command in reference.commands():
        if path != ("cfp",):
            assert f"    {' '.join(path)} " in f"{command.help}\n", f"{' '.join(path)} --help"


def test_every_public_function_has_an_example_that_runs() -> None:
    pages = [page for page in PAGES if page.name != "architecture.md"]
    snippets = "\n".join(
        text for page in (*pages, ROOT / "README.md") for text in fences(page, "python")
    )
    functions = [name for name in cfp.__all__ if name not in NO_EXAMPLE and name != "templates"]
    wanted = [f"cfp.{name}(" for name in functions]
    wanted += [f"cfp.templates.{name}(" for name in cfp.templates.__all__]
    wanted += [
        f".{name}"
        for name, member in inspect.getmembers(cfp.Plan)
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and name not in ("known", "compiled", "mesh_shape")  # for cfp itself
    ]
    missing = [name for name in wanted if name not in snippets]
    assert not missing, f"no page shows {missing}"
    for name in functions:
        assert (
            f"::: {getattr(cfp, name).__module__}.{name}" in (ROOT / "docs" / "api.md").read_text()
        )
