"""CFP plans how to split a JAX training step over many devices, by measuring."""

from cfp import templates
from cfp.analysis import Analysis, analyze
from cfp.errors import CfpError
from cfp.plan import Collective, Plan, PlanWarning, load, verify

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "CfpError",
    "Collective",
    "Plan",
    "PlanWarning",
    "__version__",
    "analyze",
    "load",
    "templates",
    "verify",
]
