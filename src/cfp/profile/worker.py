"""The process that owns the devices: `python -m cfp.profile.worker FD`, started by
`cfp.profile.process`, never by hand.

FD is a connection. The first message is the setup, `(MeshSpec, JAX's settings, compile threads,
Group or None)`, answered by `("ready",)` once the devices are open: those of a group, when all of
its workers are there. Then come requests, each a call of `Session`:

    ("submit", job)   no answer; later ("started", key) and ("finished", Compiled | Failed)
    ("run", key)      ("answer", seconds | Failed)
    ("trace", keys)   ("answer", {key: Shares})
    ("drop", keys)    no answer

An exception where none should be is answered by `("bug", traceback)`. The worker leaves at once
when its parent closes the connection or dies, whatever it is doing then.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from cfp.profile.exchange import open_exchange
from cfp.profile.job import Group, MeshSpec
from cfp.profile.session import Session

WATCH_S = 0.5
JOIN_S = 120  # for all workers of a group to be there


def main(fd: int, session_type: type[Session] = Session) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.set_inheritable(fd, False)  # or the compilers that XLA starts would keep it open
    connection: Connection[Any, Any] = Connection(fd)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    requests: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    # always reading, so that the parent never waits to be heard, and its end is noticed at once
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    lock = threading.Lock()

    def send(*message: object) -> None:
        with lock:
            try:
                connection.send(message)
            except OSError:
                os._exit(1)  # nobody listens any more

    spec, settings, compile_threads, group = requests.get()
    mesh = _open(spec, settings, group)
    finished, started = functools.partial(send, "finished"), functools.partial(send, "started")
    exchange = open_exchange([*mesh.devices.flat])
    session = session_type(mesh, compile_threads, finished, started, exchange)
    send("ready")
    while True:
        kind, argument = requests.get()
        try:
            match kind:
                case "submit":
                    session.submit(argument)
                case "run":
                    send("answer", session.run(argument))
                case "trace":
                    send("answer", session.trace(argument))
                case "drop":
                    session.drop(argument)
                case _:
                    raise ValueError(f"no such request: {kind}")
        except Exception:  # noqa: BLE001 - the parent is told, and decides
            send("bug", traceback.format_exc())


def _open(spec: MeshSpec, settings: Mapping[str, Any], group: Group | None) -> Mesh:
    """The mesh, of this process's own devices or, in a group, of all its workers'."""
    update: Any = jax.config.update
    for name, value in settings.items():
        update(name, value)
    if spec.platform == "cpu":
        update("jax_platforms", "cpu")
        # goes before --xla_force_host_platform_device_count in XLA_FLAGS, which may be inherited
        update("jax_num_cpu_devices", spec.local)
    if group is not None:
        # What JAX loads from its own cache cannot be given to other processes (`exchange`): it is
        # without its functions when loaded again, which only a run would show.
        update("jax_enable_compilation_cache", False)
        jax.distributed.initialize(
            group.address,
            group.count,
            group.index,
            cluster_detection_method="deactivate",  # we know, and the devices are set already
            initialization_timeout=JOIN_S,
        )
    there: dict[int, Any] = {device.id: device for device in jax.devices(spec.platform)}
    devices = np.array([there[i] for i in spec.device_ids]).reshape(spec.shape)
    return Mesh(devices, spec.axis_names)


def _read(connection: Connection[Any, Any], requests: queue.SimpleQueue[tuple[Any, ...]]) -> None:
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)  # the main thread may hang: do not ask it
    except BaseException:  # noqa: BLE001 - a worker without its reader would be deaf
        traceback.print_exc()
        os._exit(1)


def _watch_parent(parent: int) -> None:
    """For when the connection stays open after the parent: a fork of it may hold it, too."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
