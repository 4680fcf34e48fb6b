"""Stage 6: Plan. Build, save, load, apply, verify."""

from cfp.plan.build import auto_mesh, build_plan, plan_of_layouts
from cfp.plan.collectives import Collective, Origin
from cfp.plan.file import PlanWarning, load
from cfp.plan.plan import Plan, PlannedStep, Predicted
from cfp.plan.verify import Verified, verify

__all__ = [
    "Collective",
    "Origin",
    "Plan",
    "PlanWarning",
    "PlannedStep",
    "Predicted",
    "Verified",
    "auto_mesh",
    "build_plan",
    "load",
    "plan_of_layouts",
    "verify",
]
