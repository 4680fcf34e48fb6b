"""CFP plans how to split a JAX training step over many devices, by measuring."""

from cfp import templates
from cfp.analysis import Analysis, analyze
from cfp.compare import ComparedPlan, Comparison
from cfp.errors import CfpError
from cfp.plan import Collective, Plan, PlanWarning, load, verify
from cfp.version import VERSION

# the functions, under the names of the modules they are in
from cfp.compare import compare  # isort: skip
from cfp.planner import plan  # isort: skip

__version__ = VERSION

__all__ = [
    "Analysis",
    "CfpError",
    "Collective",
    "ComparedPlan",
    "Comparison",
    "Plan",
    "PlanWarning",
    "__version__",
    "analyze",
    "compare",
    "load",
    "plan",
    "templates",
    "verify",
]
