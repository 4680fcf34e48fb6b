"""Packages whose names are imported when they are used: JAX and the solvers take a second."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """A package whose names are imported when the first of them is used.

    A name may be a function and a module of the package, as `cfp.plan` and `cfp.profile.profile`.
    Python makes an imported module an attribute of its package, which would hide the function: that
    assignment is left out.
    """

    _defined_in: Mapping[str, str]  # the module of each name
    _rooms: Collection[str]  # modules of the package that are names themselves

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self._defined_in):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self._rooms:
            return importlib.import_module(f"{self.__name__}.{name}")
        if name not in self._defined_in:
            raise AttributeError(f"module `{self.__name__}` has no attribute `{name}`")
        found = getattr(importlib.import_module(self._defined_in[name]), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return [*self.__all__]


def import_when_used(
    package: str, defined_in: Mapping[str, str], rooms: Collection[str] = ()
) -> None:
    """Makes names of a package those of other modules, which are imported when they are used, and
    has its `rooms` imported likewise."""
    module = sys.modules[package]
    vars(module).update(_defined_in=defined_in, _rooms=rooms)
    module.__class__ = _LazyPackage
