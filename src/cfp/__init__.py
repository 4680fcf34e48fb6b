"""CFP plans how to split a JAX training step over many devices, by measuring.

The public names are imported when the first of them is used: `cfp --help` and the workers that
measure need few of them, and JAX and the solvers take a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfp.lazy import import_when_used
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
import_when_used(
    __name__,
    {
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
    },
    rooms=["templates"],
)
