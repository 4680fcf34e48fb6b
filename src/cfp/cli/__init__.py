"""The command line has one file per command, each of which parses, calls and prints.

entry      the group of all commands, and what becomes of their errors
options    options that several commands take
targets    from a step's name to the step and its arguments
"""

from cfp.cli.entry import cli, main

__all__ = ["cli", "main"]
