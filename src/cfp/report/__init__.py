"""What people read: terminal tables. Reads values only."""

from cfp.report.analysis import show_analysis
from cfp.report.plan import show_plan

__all__ = ["show_analysis", "show_plan"]
