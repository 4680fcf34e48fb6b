"""What people read: terminal tables. Reads values only."""

from cfp.report.analysis import show_analysis

__all__ = ["show_analysis"]
