"""A port to meet at."""

from __future__ import annotations

import socket


def free_port(host: str = "") -> int:
    """One that nobody listens on now. Someone may before it is used: then whoever asked fails."""
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])
