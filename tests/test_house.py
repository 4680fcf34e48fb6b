"""The code keeps its shape: one name for one class, functions that one sees whole, few parameters.

And every benchmark can be imported, so that it follows the code.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cfp

SOURCE = Path(cfp.__file__).parent
ROOT = Path(__file__).parent.parent
MOST_LINES = 60  # of a function: what a screen shows
MOST_PARAMETERS = 7  # more cannot be told apart without looking them up: make them one value
# Callers give these keywords: a value for their options would be one more thing to know.
PUBLIC = {
    "planning.compare.compare": "cfp.compare",
    "profile.api.profile": "the measurements of a step without a plan",
}
BENCHMARKS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "bench").rglob("*.py")
    if path.name != "__init__.py"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Returns every node of the source, with the name of its module."""
    found: list[tuple[str, ast.AST]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found += [(name, node) for node in ast.walk(ast.parse(path.read_text()))]
    return tuple(found)


def functions() -> Iterator[tuple[str, Function]]:
    """Yields every function and method, with its module's name before its own."""
    for module, node in nodes():
        if isinstance(node, Function):
            yield f"{module}.{node.name}", node


def parameters(function: Function) -> int:
    """Returns how many values a caller may give, not counting what `*` and `**` gather."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (bool(names) and names[0] in ("self", "cls"))


def test_no_two_classes_have_one_name() -> None:
    names = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_function_fits_on_a_screen() -> None:
    lengths = {name: (one.end_lineno or 0) - one.lineno + 1 for name, one in functions()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_a_function_has_few_parameters() -> None:
    counts = {name: parameters(one) for name, one in functions()}
    many = {name for name, count in counts.items() if count > MOST_PARAMETERS}
    assert many == PUBLIC.keys(), "what is listed without need must go from the list, too"


@pytest.mark.parametrize(
    ("text", "count"), [("self, a, /, b, *c, d=1, **e", 3), ("", 0), ("a, b", 2)]
)
def test_parameters_are_counted(text: str, count: int) -> None:
    (function,) = ast.parse(f"def one({text}): ...").body
    assert isinstance(function, Function)
    assert parameters(function) == count


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_imported(name: str) -> None:
    """A change that a benchmark has not followed is seen here, without running it."""
    importlib.import_module(name)
