"""Hosts out of network namespaces: their links, their speeds, their names.

A host is a namespace `cfp-PID-NAME`. Two hosts are joined by a pair of virtual Ethernet devices,
shaped at both ends (`tc tbf`); a host's loopback can be shaped, too. Everything is removed at the
end, however it comes; what a killed run left is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.spec import Spec, SpecError

NAMES = Path("/etc/netns")  # where `ip netns exec` finds a host's own /etc/hosts
BURST = "128kb"
LATENCY = "50ms"  # in the queue of a shaped link, before packets are dropped
_OURS = re.compile(r"cfp-(\d+)-\S+")


@dataclass(frozen=True, slots=True)
class Place:
    """A host: the namespace, its name, and the address that others reach it by."""

    namespace: str
    name: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command, run there, with the host's own name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]


def check_privileges() -> None:
    """Raises `SpecError` where namespaces cannot be made."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        raise SpecError(f"A test cluster needs `{missing[0]}`: install iproute2 and util-linux.")
    if os.geteuid() != 0:
        raise SpecError("A test cluster needs root, to make network namespaces: use sudo.")
    name = f"cfp-{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
    except SpecError as error:
        raise SpecError(
            f"This machine does not let root make network namespaces: {error}"
        ) from None
    _run("ip", "netns", "del", name)


@contextlib.contextmanager
def made(spec: Spec) -> Iterator[list[Place]]:
    """Makes the hosts of a spec, and removes them afterwards."""
    check_privileges()
    _clean()
    places = [
        Place(f"cfp-{os.getpid()}-{host.name}", host.name, f"10.213.0.{i + 1}")
        for i, host in enumerate(spec.hosts)
    ]
    try:
        for place in places:
            _make_host(place, places, spec)
        if len(places) == 2:
            _join(places, spec)
        else:
            _run("ip", "-n", places[0].namespace, "addr", "add", "10.213.0.1/32", "dev", "lo")
        yield places
    finally:
        for place in places:
            _remove(place.namespace)


def _make_host(place: Place, places: Sequence[Place], spec: Spec) -> None:
    folder = NAMES / place.namespace
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in places)]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    _run("ip", "netns", "add", place.namespace)
    _run("ip", "-n", place.namespace, "link", "set", "lo", "up")
    _shape(place.namespace, "lo", spec.loopback, None)


def _join(places: Sequence[Place], spec: Spec) -> None:
    a, b = places
    pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.namespace]
    _run("ip", "-n", a.namespace, *pair)
    for place in places:
        _run("ip", "-n", place.namespace, "addr", "add", f"{place.address}/24", "dev", "eth0")
        _run("ip", "-n", place.namespace, "link", "set", "eth0", "up")
        _shape(place.namespace, "eth0", spec.link, spec.delay)


def _shape(namespace: str, device: str, rate: str | None, delay: str | None) -> None:
    tc = ["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device]
    parent = ["root"]
    if delay is not None:
        _run(*tc, "root", "handle", "1:", "netem", "delay", delay, "limit", "100000")
        parent = ["parent", "1:", "handle", "2:"]
    if rate is not None:
        _run(*tc, *parent, "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)


def _clean() -> None:
    """Removes what runs left that are no more."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        found = _OURS.fullmatch(name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove(name)


def _remove(namespace: str) -> None:
    """Removes the hosts, with all that runs there."""
    found = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
    shutil.rmtree(NAMES / namespace, ignore_errors=True)


def _run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SpecError(f"`{' '.join(command)}` failed: {ran.stderr.strip() or ran.returncode}")
    return ran.stdout
