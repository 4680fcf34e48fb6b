"""What CFP says when it cannot go on: one sentence with what, where and the way out."""


class CfpError(Exception):
    """The user's problem: bad input, or nothing that fits. The message is for a person."""
