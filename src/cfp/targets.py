"""From what the user names on the command line to a step and its arguments."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax

from cfp import models
from cfp.errors import CfpError

Step = Callable[..., Any]


def load_target(target: str, options: Mapping[str, Any]) -> tuple[Step, tuple[Any, ...]]:
    """A built-in model by name, or `module:function` that returns `(step, args)`.

    `options` are the model's size and overrides; None means not given. A built-in model's step
    donates its state, as one trains it.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    if ":" not in target:
        if target not in models.NAMES:
            raise CfpError(
                f"There is no model `{target}`: use one of {', '.join(models.NAMES)}, "
                "or your own as module:function."
            )
        size = given.pop("size", "tiny")
        step, args = models.make_step(models.config(target, size, **given))
        return jax.jit(step, donate_argnums=0), args
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
    except Exception as error:
        raise CfpError(f"Importing `{module_name}` failed: {_said(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise CfpError(f"`{module_name}` has no function `{function_name}`: check the spelling.")
    try:
        result = function()
    except Exception as error:
        raise CfpError(f"`{target}` failed: {_said(error)}") from error
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[0]):
        raise CfpError(f"`{target}` must return (step, args), not a {type(result).__name__}.")
    step, args = result
    if not isinstance(args, (tuple, list)):
        raise CfpError(
            f"`{target}` must return (step, args) with args a tuple, not a {type(args).__name__}."
        )
    return step, tuple(args)


def _said(error: Exception) -> str:
    """An error of the user's code in one line, with the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
    return f"{type(error).__name__}: {message} ({os.path.basename(frame.filename)}:{frame.lineno})."
