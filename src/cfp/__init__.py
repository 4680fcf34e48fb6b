"""CFP plans how to split a JAX training step over many devices, by measuring.

The public names are imported when the first of them is used: `cfp --help` and the workers that
measure need few of them, and JAX and the solvers take a second to import.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cfp.version import VERSION

if TYPE_CHECKING:
    from cfp import templates
    from cfp.analysis import Analysis, analyze
    from cfp.errors import CfpError, PlanWarning
    from cfp.jit import jit
    from cfp.plan import Collective, Plan, load, verify
    from cfp.planner import plan
    from cfp.planning.check import Checked, check
    from cfp.planning.compare import ComparedPlan, Comparison, compare

__version__ = VERSION

__all__ = [
    "Analysis",
    "CfpError",
    "Checked",
    "Collective",
    "ComparedPlan",
    "Comparison",
    "Plan",
    "PlanWarning",
    "__version__",
    "analyze",
    "check",
    "compare",
    "jit",
    "load",
    "plan",
    "templates",
    "verify",
]
_ROOMS = {  # where each name is; `templates` is a room itself
    "Analysis": "cfp.analysis",
    "CfpError": "cfp.errors",
    "Checked": "cfp.planning.check",
    "Collective": "cfp.plan",
    "ComparedPlan": "cfp.planning.compare",
    "Comparison": "cfp.planning.compare",
    "Plan": "cfp.plan",
    "PlanWarning": "cfp.errors",
    "analyze": "cfp.analysis",
    "check": "cfp.planning.check",
    "compare": "cfp.planning.compare",
    "jit": "cfp.jit",
    "load": "cfp.plan",
    "plan": "cfp.planner",
    "verify": "cfp.plan",
}


class _Package(ModuleType):
    """The package, whose names are imported when they are used.

    `plan` is a function and a room. Python makes an imported room an attribute of its package,
    which would hide the function: that assignment is left out.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _ROOMS):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "templates":
            return importlib.import_module("cfp.templates")
        if name not in _ROOMS:
            raise AttributeError(f"module `cfp` has no attribute `{name}`")
        found = getattr(importlib.import_module(_ROOMS[name]), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return [*__all__]


sys.modules[__name__].__class__ = _Package
