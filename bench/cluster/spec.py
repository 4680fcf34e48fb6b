"""What a test cluster is like, as a file says it.

description = "two hosts, 200 Mbit/s between them"
link = "200mbit"        # between the hosts; none: as fast as the machine
loopback = "2gbit"      # within a host
delay = "1ms"           # of the link, each way

[[hosts]]
name = "boxa"
processes = 1
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

SPECS = Path(__file__).parent / "specs"
_RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
_TIME = re.compile(r"\d+(\.\d+)?(us|ms|s)")


class SpecError(Exception):
    """A sentence for the user."""


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    processes: int


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    description: str
    hosts: tuple[Host, ...]
    link: str | None
    loopback: str | None
    delay: str | None

    @property
    def processes(self) -> int:
        return sum(host.processes for host in self.hosts)


def read_spec(path: str) -> Spec:
    """Returns the spec in a file, or the one of that name in `bench/cluster/specs`."""
    file = next(
        (p for p in (Path(path), SPECS / path, SPECS / f"{path}.toml") if p.is_file()), None
    )
    if file is None:
        known = ", ".join(sorted(p.name for p in SPECS.glob("*.toml")))
        raise SpecError(f"There is no spec `{path}`: give a file, or one of {known}.")
    try:
        found = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file.name} is not TOML: {error}.") from error
    unknown = found.keys() - {"description", "hosts", "link", "loopback", "delay"}
    if unknown:
        raise SpecError(f"{file.name}: `{sorted(unknown)[0]}` is not part of a spec.")
    listed = found.get("hosts")
    if not isinstance(listed, list) or not all("name" in host for host in listed):
        raise SpecError(f"{file.name}: `hosts` must be [[hosts]], each with a `name`.")
    hosts = tuple(Host(str(host["name"]), int(host.get("processes", 1))) for host in listed)
    if len(hosts) not in (1, 2) or min(host.processes for host in hosts) < 1:
        raise SpecError(f"{file.name}: give one or two [[hosts]], each with a process or more.")
    for name, pattern in (("link", _RATE), ("loopback", _RATE), ("delay", _TIME)):
        if name in found and not pattern.fullmatch(str(found[name])):
            raise SpecError(f"{file.name}: `{name}` is {found[name]!r}: write 200mbit or 1ms.")
    return Spec(
        name=file.stem,
        description=str(found.get("description", file.stem)),
        hosts=hosts,
        link=found.get("link"),
        loopback=found.get("loopback"),
        delay=found.get("delay"),
    )
