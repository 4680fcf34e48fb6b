"""CFP plans how to split a JAX training step over many devices, by measuring."""

from cfp.analysis import Analysis, analyze
from cfp.errors import CfpError

__version__ = "0.1.0"

__all__ = ["Analysis", "CfpError", "__version__", "analyze"]
