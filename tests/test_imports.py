"""Imports point one way, and JAX's private parts are touched in `trace` alone (design 4)."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import cfp
import cfp.profile

ROOT = Path(cfp.__file__).parent
# each room may import itself and those before it; `report` reads values, so it comes last
ORDER = [
    "lazy",
    "errors",
    "version",
    "duration",
    "memory_size",
    "writing",
    "links",
    "affine",
    "trace",
    "cluster",
    "blocks",
    "layouts",
    "segments",
    "analysis",
    "profile",
    "calibration",
    "search",
    "export",
    "plan",
    "templates",
    "training",
    "devices",
    "planning",
    "planner",
    "jit",
    "report",
    "cli",
    "__main__",
]
# the rooms of `profile`, and the files on top of them, in the order that its docstring states
PROFILE_ORDER = ["runners", "programs", "measure", "peak", "explore", "profile", "profiler", "api"]
STAGES = {"links", "affine", "trace", "blocks", "layouts", "segments", "profile", "search", "plan"}
MOST_FILES = 20  # in one folder of src: more cannot be taken in at a glance
ALONE = {"models": {"errors", "models"}}  # the models know nothing of the planner
# what shows itself when asked, or tells of its progress: these import `report` inside functions
SHOWS = {"plan", "planner", "planning"}
MODELS_READERS = {"cli"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path, *, inside: bool = True) -> set[str]:
    """The modules that a file imports; those inside functions too, unless `inside` is false."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if inside else tree.body:
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
        outside = imports(path, inside=False)
        for name in imports(path):
            parts = name.split(".")
            if here in SHOWS and parts[:2] == ["cfp", "report"] and name not in outside:
                continue
            if parts[0] == "cfp" and len(parts) > 1 and parts[1] in {*ORDER, *ALONE}:
                assert parts[1] in allowed, f"{here} imports {name} ({path.name})"
    assert seen == {*ORDER, *ALONE}, "a new room needs a place in ORDER"


def test_the_rooms_of_profile_import_one_way() -> None:
    seen = set()
    for path in (ROOT / "profile").rglob("*.py"):
        here = path.relative_to(ROOT / "profile").parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        seen.add(here)
        allowed = PROFILE_ORDER[: PROFILE_ORDER.index(here) + 1]
        for name in imports(path):
            parts = name.split(".")
            if parts[:2] == ["cfp", "profile"]:
                assert len(parts) > 2, f"{path} imports all of cfp.profile"
                assert parts[2] in allowed, f"{here} imports {name} ({path.name})"
    assert seen == {*PROFILE_ORDER}, "a new room needs a place in PROFILE_ORDER"


def test_a_room_lists_all_of_its_files() -> None:
    others = ("search", "links", "calibration")
    rooms = [f"profile/{one}" for one in PROFILE_ORDER if (ROOT / "profile" / one).is_dir()]
    assert len(rooms) == 4
    for room in (*rooms, *others):
        folder = ROOT / room
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        listed = set(re.findall(r"^ {4}(\w+) ", docstring, re.MULTILINE))
        files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert listed == files, f"{room}/__init__.py: {sorted(listed ^ files)}"


def test_no_folder_holds_more_than_can_be_taken_in() -> None:
    for folder in {path.parent for path in ROOT.rglob("*.py")} - {ROOT}:
        assert len(list(folder.glob("*.py"))) <= MOST_FILES, folder


def test_private_jax_stays_in_trace() -> None:
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            if name.startswith(("jax._src", "jax.extend")):
                assert room(path) == "trace", f"{path} imports {name}"


def test_nothing_in_the_stages_is_for_tests_alone() -> None:
    """Every function, class and constant of a module is used there, or imported by another."""
    trees = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    named = {
        (node.module, alias.name)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    spoken = {
        (node.value.id, node.attr)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for path, tree in trees.items():
        if room(path) not in STAGES or path.name == "__init__.py":
            continue
        module = ".".join(("cfp", *path.relative_to(ROOT).with_suffix("").parts))
        for name, uses in defined(tree).items():
            elsewhere = (module, name) in named or (path.stem, name) in spoken
            assert uses or elsewhere, f"{module}.{name} is used by tests alone, if at all"


def defined(tree: ast.Module) -> dict[str, int]:
    """Returns the names that a module defines, and how often it uses each outside its own body."""
    found: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = 0
        elif isinstance(node, ast.Assign):
            found.update({t.id: 0 for t in node.targets if isinstance(t, ast.Name)})
    found.pop("__all__", None)
    for node in tree.body:
        own = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id != own:
                found[part.id] = found.get(part.id, 0) + 1
    return found


def test_affine_needs_no_jax() -> None:
    for path in (ROOT / "affine").rglob("*.py"):
        assert not any(name.split(".")[0] == "jax" for name in imports(path)), path


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    """A module that is imported becomes an attribute of its package, whatever the name is."""
    for package, name in ((cfp, "plan"), (cfp, "jit"), (cfp.profile, "profile")):
        vars(package).pop(name, None)  # as before it was first used
        module = importlib.import_module(f"{package.__name__}.{name}")
        setattr(package, name, module)
        assert inspect.isfunction(getattr(package, name))
    assert inspect.ismodule(cfp.templates)
