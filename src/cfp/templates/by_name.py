"""Templates by their names, for whoever compares several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cfp import templates
from cfp.errors import CfpError
from cfp.layouts import AnyMesh
from cfp.plan import Plan
from cfp.templates.parallax import parallax

# plans that other packages make, where they are installed; `all` does not stand for them
OTHERS: dict[str, Callable[..., Plan]] = {"parallax": parallax}
NAMES = (*templates.__all__, *OTHERS)


def make_templates(
    names: Sequence[str], step: Callable[..., Any], args: tuple[Any, ...], mesh: AnyMesh
) -> dict[str, Plan | str]:
    """Returns the plan of each template, or why it has none for this step."""
    makers = {name: getattr(templates, name) for name in templates.__all__} | OTHERS
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise CfpError(f"There is no template `{unknown[0]}`: use {', '.join(sorted(makers))}.")
    found: dict[str, Plan | str] = {}
    for name in names:
        try:
            found[name] = makers[name](step, *args, mesh=mesh)
        except CfpError as error:
            found[name] = str(error)
    return found
