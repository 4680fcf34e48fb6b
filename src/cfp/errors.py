"""What CFP says when it cannot go on: one sentence with what, where and the way out."""

from typing import ClassVar


class CfpError(Exception):
    """The user's problem: bad input, or nothing that fits. The message is for a person; where it is
    `told`, another process shows it."""

    told: ClassVar[bool] = False


class PlanWarning(UserWarning):
    """What one should know before one trusts a plan: it was made under other conditions than it is
    used in, or its step trains nothing."""
