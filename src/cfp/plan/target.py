"""What a plan was made for, as it was named on the command line.

A file cannot hold a step. It can hold its name: a built-in model with all of its options, those
that were given and those that followed, or `module:function` of the user's project. Reading it runs
nothing; a command that is told no target takes the one that its plan names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfp.plan.fields import Fields

Option = str | int | float | bool | None
_NAME = re.compile(r"[a-z]+|\w+(\.\w+)*:\w+")  # gpt, my_project.train:make_step


@dataclass(frozen=True, slots=True)
class Target:
    """What a command made a plan for. `options` are all options of a built-in model, by name;
    `given` are those that the user chose."""

    name: str
    options: tuple[tuple[str, Option], ...] = ()
    given: tuple[str, ...] = ()

    def show(self) -> str:
        """Returns the target as one writes it in a command: `gpt --size small --layers 2`."""
        options = dict(self.options)
        return " ".join([self.name, *(option_text(name, options[name]) for name in self.given)])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options), "given": list(self.given)}

    @staticmethod
    def from_fields(fields: Fields) -> Target:
        name, given = fields.text("name"), fields.texts("given")
        if _NAME.fullmatch(name) is None:
            raise fields.wrong("name", "a model or module:function")
        options = fields.object("options")
        found = tuple((option, options.option(option)) for option in options.data)
        unknown = [option for option in given if option not in options.data]
        if unknown:
            raise fields.wrong("given", "a list of names of options")
        return Target(name, found, tuple(given))


def target_of(document: Fields) -> Target | None:
    """Returns what a plan's document names; plans made in Python, and older ones, name nothing."""
    if not document.has("target"):
        return None
    fields = document.optional("target")
    return None if fields is None else Target.from_fields(fields)


def differences(given: Mapping[str, Option], kept: Target) -> list[tuple[str, Option]]:
    """Returns the options of a plan's target that differ from those that are given now."""
    there = dict(kept.options)
    return [(name, there.get(name)) for name, value in given.items() if there.get(name) != value]


def option_text(name: str, value: Option) -> str:
    """Returns `--layers 2`; for a flag its name alone, or what one leaves out."""
    if isinstance(value, bool) or value is None:
        return f"--{name}" if value else f"no --{name}"
    return f"--{name} {value}"
