"""Where a table was made, in one line."""

from __future__ import annotations

import os
import platform
import sys

import jax


def made_by(module: str) -> str:
    """Returns the command and the environment."""
    command = " ".join(["python -m", module, *sys.argv[1:]])
    return f"`{command}`, {environment()}."


def told(seconds: float | None) -> float:
    """Returns a share of a time. A figure is not made of what was not measured."""
    if seconds is None:
        raise SystemExit("Communication was not measured: end other profilers, and run this again.")
    return seconds


def environment() -> str:
    flags = os.environ.get("XLA_FLAGS", "").strip()
    return (
        f"JAX {jax.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores"
        + (f", XLA_FLAGS `{flags}`" if flags else "")
    )
