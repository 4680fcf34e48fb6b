"""Stage 6 makes the `Plan`: it is built, saved, loaded, applied and verified here."""

from cfp.plan.build import build_plan, plan_of_layouts
from cfp.plan.collectives import Collective, Origin
from cfp.plan.file import load
from cfp.plan.plan import Plan, Predicted
from cfp.plan.planned_step import PlannedStep, ReadyCall
from cfp.plan.verify import Verified, verify

__all__ = [
    "Collective",
    "Origin",
    "Plan",
    "PlannedStep",
    "Predicted",
    "ReadyCall",
    "Verified",
    "build_plan",
    "load",
    "plan_of_layouts",
    "verify",
]
