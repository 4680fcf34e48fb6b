"""Packages whose names are imported when they are used: JAX and the solvers take a second."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """A package whose names are imported when the first of them is used.

    A name may be a function and a module of the package, as `cfp.plan` and `cfp.profile.profile`.
    Python makes an imported module an attribute of its package, which would hide the function: that
    assignment is left out.
    """

    _modules: Mapping[str, str]  # by name, where it is defined, or the name of a module itself

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self._modules):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            raise AttributeError(f"module `{self.__name__}` has no attribute `{name}`")
        module = importlib.import_module(self._modules[name])
        own = f"{self.__name__}.{name}" == self._modules[name]
        found = module if own else getattr(module, name)
        super().__setattr__(name, found)
        return found

    def __dir__(self) -> list[str]:
        return [*self.__all__]


def import_when_used(package: str, modules: Mapping[str, str]) -> None:
    """Makes names of a package those of other modules, which are imported when they are used."""
    module = sys.modules[package]
    vars(module)["_modules"] = modules
    module.__class__ = _LazyPackage
