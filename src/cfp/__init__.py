"""CFP plans how to split a JAX training step over many devices, by measuring."""

from cfp import templates
from cfp.analysis import Analysis, analyze
from cfp.errors import CfpError
from cfp.plan import Collective, Plan, PlanWarning, load, verify
from cfp.version import VERSION

__version__ = VERSION

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
