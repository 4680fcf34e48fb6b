"""Whether another process can have a device, too."""

from __future__ import annotations

from typing import Any


def shareable(device: Any) -> bool:
    """Always CPUs, GPUs unless this process has taken their memory in advance, never TPUs."""
    if device.platform == "cpu":
        return True
    if device.platform != "gpu":
        return False
    taken = device.memory_stats() or {}
    return not taken.get("pool_bytes", 0) > taken.get("bytes_limit", 0) / 2
