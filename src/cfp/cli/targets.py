"""From what the user names on the command line to a step and its arguments."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import jax

from cfp import models
from cfp.errors import CfpError
from cfp.plan.target import Target, differences, option_text
from cfp.trace.source import error_line, in_one_line

DEFAULT_SIZE = "tiny"
Step = Callable[..., Any]


def load_target(target: str, options: Mapping[str, Any]) -> tuple[Step, tuple[Any, ...]]:
    """Returns the step and arguments of a built-in model, or of a `module:function` that returns
    them.

    `options` are the model's size and overrides; None means not given. A built-in model's step
    donates its state, as one trains it.
    """
    given = _given(options)
    if ":" not in target:
        step, args = models.make_step(model_config(target, options))
        return jax.jit(step, donate_argnums=0), args
    if given:
        raise CfpError(
            f"--{sorted(given)[0].replace('_', '-')} is for built-in models: "
            f"set it inside {target} instead."
        )
    return _call(target)


def model_config(name: str, options: Mapping[str, Any]) -> models.Config:
    """Returns a built-in model, of the size and with the overrides that are given."""
    if name not in models.NAMES:
        raise CfpError(
            f"There is no model `{name}`: use one of {', '.join(models.NAMES)}, "
            "or your own as module:function."
        )
    given = _given(options)
    size = given.pop("size", DEFAULT_SIZE)
    return models.config(name, size, **given)


def tokens_of(name: str, options: Mapping[str, Any]) -> int | None:
    """Returns the tokens of one step of a built-in model; nobody knows those of another target."""
    if ":" in name:
        return None
    config = model_config(name, options)
    return config.batch * config.seq


def keep_target(name: str, options: Mapping[str, Any]) -> Target:
    """Returns what a plan keeps of a target, so that it need not be named again."""
    if ":" in name:
        return Target(name)
    given = _given(options)
    config = asdict(model_config(name, options))
    config.pop("model")
    size = given.get("size", DEFAULT_SIZE)
    return Target(name, tuple({"size": size, **config}.items()), tuple(given))


def choose_target(
    name: str | None, options: Mapping[str, Any], kept: Target | None, path: str
) -> tuple[str, dict[str, Any]]:
    """Returns the target of a command that has a plan, and its options.

    What is not given is what the plan at `path` was made for. What is given must agree with that,
    or the plan cannot be for it; your own function is the judge of whether it still is.
    """
    given = _given(options)
    if name is None and kept is None:
        raise CfpError(
            f"{path} does not say which step it is for: name it after the plan, as gpt or "
            "my_project.train:make_step."
        )
    if kept is None or (name is not None and ":" in name):
        return str(name), given
    if ":" in kept.name:
        return name or kept.name, given
    if name not in (None, kept.name):
        raise CfpError(
            f"{path} is a plan for `{kept.show()}`, not for {name}: leave the name out, or plan "
            f"{name}."
        )
    other = differences(given, kept)
    if other:
        here = " ".join(option_text(option, given[option]) for option, _ in other)
        there = " ".join(option_text(option, value) for option, value in other)
        raise CfpError(
            f"{path} is a plan for {kept.name} with {there}, not {here}: leave the options out, "
            "or plan again with them."
        )
    return kept.name, dict(kept.options)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that the user chose: others are None, and flags False."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def _call(target: str) -> tuple[Step, tuple[Any, ...]]:
    module_name, _, function_name = target.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        module = module_name.removesuffix(".py").replace(os.sep, ".").lstrip(".")
        raise CfpError(
            f"`{target}` names a file: name the module, as {module}:{function_name}, and run from "
            "your project's folder."
        )
    function = getattr(_import(module_name), function_name, None)
    if function is None:
        raise CfpError(f"`{module_name}` has no function `{function_name}`: check the spelling.")
    if not callable(function):
        raise CfpError(
            f"`{target}` is {_kind(function)}, not a function: name one that returns (step, args)."
        )
    try:
        result = function()
    except CfpError:
        raise
    except Exception as error:
        raise CfpError(f"`{target}` failed: {in_one_line(error)}.") from error
    if not isinstance(result, tuple):
        raise CfpError(f"`{target}` must return (step, args), not {_kind(result)}.")
    if len(result) != 2:
        raise CfpError(
            f"`{target}` must return (step, args), not a tuple of {len(result)}: put the step's "
            "arguments into one tuple, as `return step, (state, batch)`."
        )
    step, args = result
    if not callable(step):
        raise CfpError(
            f"`{target}` must return (step, args) with a step to call, not {_kind(step)}."
        )
    if not isinstance(args, (tuple, list)):
        raise CfpError(f"`{target}` must return (step, args) with args a tuple, not {_kind(args)}.")
    return step, tuple(args)


def _import(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's project is here
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if f"{name}.".startswith(f"{missing}."):
            raise CfpError(
                f"Cannot import `{name}`: there is no module `{missing}`. Run from your project's "
                "folder, or install the project."
            ) from error
        raise CfpError(
            f"`{name}` needs `{missing}` ({error_line(error)}), which is not installed: install it."
        ) from error
    except Exception as error:
        raise CfpError(f"Importing `{name}` failed: {in_one_line(error)}.") from error


def _kind(value: Any) -> str:
    """Returns the type in words: `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
