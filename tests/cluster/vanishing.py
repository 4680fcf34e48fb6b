"""One of two hosts, of which the second vanishes in the midst of a message:
`python -m bench.cluster run --spec two_hosts_200mbit -- python -m tests.cluster.vanishing`.

The first prints how it noticed."""

from __future__ import annotations

import os
import queue
import socket
import struct
import subprocess
import time

from cfp.cluster import connection as connection_module
from cfp.cluster.connection import Connection
from cfp.cluster.launch import VARIABLES
from cfp.cluster.rendezvous import Hello
from cfp.cluster.wire import Message

SECRET = b"s"
HELLO = Hello(0, "box", "1")
SILENT_S, BEAT_S = 3.0, 0.5


def main() -> None:
    connection_module.SILENT_S, connection_module.BEAT_S = SILENT_S, BEAT_S
    address, _, index = (os.environ[name] for name in VARIABLES)
    host, port = address.rsplit(":", 1)
    if index == "0":
        stay((host, int(port)))
    else:
        vanish((host, int(port)))


def stay(address: tuple[str, int]) -> None:
    with socket.create_server(address) as server:
        connection = Connection(server.accept()[0], SECRET, HELLO, accepts=True)
    got: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    connection.start(got.put)
    assert got.get() == HELLO
    start = time.monotonic()
    assert got.get() is None
    print(f"{connection.lost} after {time.monotonic() - start:.1f} s")


def vanish(address: tuple[str, int]) -> None:
    while True:
        try:
            connected = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)  # the other has not come to it yet
    connection = Connection(connected, SECRET, HELLO, accepts=False)
    connection.send(HELLO)
    connected.sendall(struct.pack(">I", 2**20) + b"the beginning")  # of a message of 1 MiB
    time.sleep(0.5)  # it is there
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


if __name__ == "__main__":
    main()
