"""Imports point one way, and JAX's private parts are touched in `trace` alone (design 4)."""

from __future__ import annotations

import ast
from pathlib import Path

import cfp

ROOT = Path(cfp.__file__).parent
# each room may import itself and those before it; `report` reads values, so it comes last
ORDER = [
    "errors",
    "version",
    "duration",
    "memory_size",
    "cluster",
    "affine",
    "trace",
    "blocks",
    "layouts",
    "segments",
    "analysis",
    "profile",
    "search",
    "plan",
    "templates",
    "training",
    "devices",
    "audit",
    "candidates",
    "choose",
    "planner",
    "compare",
    "report",
    "targets",
    "cli_cache",
    "cli_options",
    "cli_cluster",
    "cli_train",
    "cli_plan",
    "cli",
    "__main__",
]
ALONE = {"models": {"errors", "models"}}  # the models know nothing of the planner
MODELS_READERS = {"targets", "cli_train", "cli"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            found.add(node.module)
            if node.module == "cfp":
                found.update(f"cfp.{alias.name}" for alias in node.names)
    return found


def test_a_stage_never_imports_a_later_one() -> None:
    seen = set()
    for path in ROOT.rglob("*.py"):
        here = room(path)
        if here == "__init__":
            continue
        seen.add(here)
        allowed = ALONE.get(here) or {*ORDER[: ORDER.index(here) + 1]}
        if here in MODELS_READERS:
            allowed.add("models")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "cfp" and len(parts) > 1 and parts[1] in {*ORDER, *ALONE}:
                assert parts[1] in allowed, f"{here} imports {name} ({path.name})"
    assert seen == {*ORDER, *ALONE}, "a new room needs a place in ORDER"


def test_private_jax_stays_in_trace() -> None:
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            if name.startswith(("jax._src", "jax.extend")):
                assert room(path) == "trace", f"{path} imports {name}"


def test_affine_needs_no_jax() -> None:
    for path in (ROOT / "affine").rglob("*.py"):
        assert not any(name.split(".")[0] == "jax" for name in imports(path)), path
