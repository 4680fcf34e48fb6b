"""The report is what people read: terminal tables, and a page. It reads values and changes none."""

from cfp.report.analysis import show_analysis
from cfp.report.comparison import show_comparison
from cfp.report.page import render_page, report_path, write_page
from cfp.report.plan import plan_text, show_plan
from cfp.report.planned import show_planned
from cfp.report.profile import profile_to_json, show_profile
from cfp.report.progress import TerminalProgress
from cfp.report.scaling import show_scaling

__all__ = [
    "TerminalProgress",
    "plan_text",
    "profile_to_json",
    "render_page",
    "report_path",
    "show_analysis",
    "show_comparison",
    "show_plan",
    "show_planned",
    "show_profile",
    "show_scaling",
    "write_page",
]
