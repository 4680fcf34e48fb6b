"""Stage 4: every candidate of every distinct segment, measured on the real devices."""

from cfp.profile.api import profile
from cfp.profile.boundary import Boundary, Crossing
from cfp.profile.kinds import Kind, Option
from cfp.profile.machine import Machine
from cfp.profile.profile import Cost, Profile, SegmentProfile
from cfp.profile.progress import Progress
from cfp.profile.store import Store, StoreWarning
from cfp.profile.turns import Effort

__all__ = [
    "Boundary",
    "Cost",
    "Crossing",
    "Effort",
    "Kind",
    "Machine",
    "Option",
    "Profile",
    "Progress",
    "SegmentProfile",
    "Store",
    "StoreWarning",
    "profile",
]
