"""README's commands and snippets run one after the other, as they are written there.

The user's project is one that has what README names, and the commands measure in this process: a
worker that may crash is not what README is about. What `srun` and `cfp launch` start is run by
itself. Budgets are shorter, models and calibrated tensors smaller, rounds and steps fewer
than there: that commands answer is what is tested.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from cfp.cli import cli

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BUDGETS_S = (2, 4, 8, 16, 32, 64)  # a slow machine needs more than the first
# what makes these commands take less: two sizes make a link, and five rounds a comparison
SHORTER = {
    ("analyze", "gpt"): ["--layers", "6"],
    ("analyze", "llama"): ["--layers", "4"],
    ("analyze", "moe"): ["--layers", "4"],
    ("calibrate",): ["--largest", "4KiB"],
    ("compare",): ["--rounds", "5"],
    ("plan", "gpt"): ["--layers", "1", "--hidden", "32"],
    ("train",): ["--steps", "5"],
}
BUDGET_ENDED = re.compile("[Ww]hat was measured is kept")
PROJECT = """\
import jax
import jax.numpy as jnp


def step(params, batch):
    def loss(params):
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def make_step():
    params = {"up": jnp.ones((16, 32)) / 16, "down": jnp.ones((32, 16)) / 32}
    return step, (params, {"x": jnp.ones((32, 16)), "y": jnp.ones((32, 16))})
"""


def blocks() -> Iterator[tuple[str, str]]:
    """The language and the text of every block of README, in order."""
    for found in BLOCK.finditer((ROOT / "README.md").read_text()):
        yield found[1], found[2]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a block, without its comment."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with the user's project, and what README's snippets take as given."""
    (tmp_path / "my_project").mkdir()
    (tmp_path / "my_project" / "train.py").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for room in ("runners.shared_decision", "api"):
        monkeypatch.setattr(f"cfp.profile.{room}.can_isolate", lambda mesh: False)
    names: dict[str, Any] = {}
    exec(compile(PROJECT, "train.py", "exec"), names)
    step, args = names["make_step"]()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    return {"jax": jax, "step": step, "args": args, "mesh": mesh}


def test_everything_in_it_runs(project: dict[str, Any]) -> None:
    ran: list[str] = []
    for language, text in blocks():
        if language == "python":
            exec(compile(text, "README.md", "exec"), project)
            continue
        if language == "text":  # what something prints
            continue
        for words in commands(text):
            if words[0] == "make":
                assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
                continue
            if words[0] == "pip":
                assert words == ["pip", "install", "."]  # test_packaging installs the wheel
                continue
            if words[0] == "srun":
                words = words[1:]
            if words[:2] == ["cfp", "launch"]:
                words = words[words.index("--") + 1 :]
            assert words[0] == "cfp"
            for start, shorter in SHORTER.items():
                if words[1 : 1 + len(start)] == [*start]:
                    words += shorter
            run(words[1:])
            ran.append(words[1])
    shown = {"plan", "explain", "train", "compare", "check", "export", "analyze", "profile"}
    assert {*shown, "verify"} <= {*ran}
    written = {path.name for path in Path().iterdir()}
    assert {"plan.json", "plan.html", "mine.json", "mine.html", "megatron.json"} <= written


def run(words: list[str]) -> None:
    """Runs a command; where the budget ended, it runs again with more, as the message says."""
    for budget_s in BUDGETS_S:
        if "--budget" in words:
            words[words.index("--budget") + 1] = f"{budget_s}s"
        done = CliRunner().invoke(cli, words)
        if not BUDGET_ENDED.search(str(done.exception)):
            break
    assert done.exit_code == 0, f"cfp {' '.join(words)}: {done.exception}\n{done.output}"


def test_the_demo_makes_what_the_next_commands_read() -> None:
    """`make demo` and README's first command write the same file, which the next ones read."""
    makefile = (ROOT / "Makefile").read_text()
    demo = makefile.partition("\ndemo:")[2].partition("\n\n")[0].replace("\\\n", " ")
    words = shlex.split(demo.splitlines()[1])
    words = words[words.index("$(BIN)/cfp") + 1 :]
    assert words[:2] == ["plan", "gpt"]
    assert words[words.index("--out") + 1] == "plan.json"
    assert words[words.index("--mesh") + 1] == "4"
