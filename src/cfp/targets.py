"""From what the user names on the command line to a step and its arguments."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from cfp import models
from cfp.errors import CfpError

Step = Callable[..., Any]


def load_target(target: str, options: Mapping[str, Any]) -> tuple[Step, tuple[Any, ...]]:
    """A built-in model by name, or `module:function` that returns `(step, args)`.

    `options` are the model's size and overrides; None means not given.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    if ":" not in target:
        if target not in models.NAMES:
            raise CfpError(
                f"There is no model `{target}`: use one of {', '.join(models.NAMES)}, "
                "or your own as module:function."
            )
        size = given.pop("size", "tiny")
        return models.make_step(models.config(target, size, **given))
    if given:
        raise CfpError(
            f"--{sorted(given)[0].replace('_', '-')} is for built-in models: "
            f"set it inside {target} instead."
        )
    return _call(target)


def _call(target: str) -> tuple[Step, tuple[Any, ...]]:
    module_name, _, function_name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's project is here
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CfpError(
            f"Cannot import `{module_name}`: {error}. Run from your project's folder, "
            "or install the project."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise CfpError(f"`{module_name}` has no function `{function_name}`: check the spelling.")
    result = function()
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[0]):
        raise CfpError(f"`{target}` must return (step, args), not a {type(result).__name__}.")
    step, args = result
    if not isinstance(args, (tuple, list)):
        raise CfpError(
            f"`{target}` must return (step, args) with args a tuple, not a {type(args).__name__}."
        )
    return step, tuple(args)
