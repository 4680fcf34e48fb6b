"""Where a process listens: on which addresses of its host, and at which port."""

from __future__ import annotations

import ipaddress
import os
import socket

from cfp.errors import CfpError

LOOPBACK = "127.0.0.1"


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of `HOST:PORT`, an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:9]) < 2**16:
        raise CfpError(
            f"--coordinator is {address!r}: write HOST:PORT, with a port from 1 to 65535."
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Returns `HOST:PORT`; the host "" is all addresses of this machine."""
    host = host or "::"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_host(host: str) -> str:
    """Returns the one address to listen on for others that reach this machine as `host`, or "" for
    all of them: which of a name's addresses the others use, only they can tell."""
    if host == "localhost":
        return LOOPBACK
    try:
        address = ipaddress.ip_address(host)
        listen(str(address)).close()
    except (ValueError, OSError):  # a name, or an address that another machine passes on to us
        return ""
    return "" if address.is_unspecified else str(address)


def listen(host: str, port: int = 0) -> socket.socket:
    """Returns a socket that listens on an address of this machine, or on all of them for ""; the
    port 0 stands for any free one."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def free_port(host: str = "") -> int:
    """Returns one that nobody listens on now. Someone may before it is used: then whoever asked
    fails."""
    with listen(host) as server:
        return int(server.getsockname()[1])


def why_not(host: str, port: int) -> str | None:
    """Returns why one cannot listen there, None if one can: JAX's coordinator would crash."""
    try:
        listen(host, port).close()
    except OSError as error:
        return f"cannot listen on {join_address(host, port)}: {os.strerror(error.errno or 0)}"
    return None
