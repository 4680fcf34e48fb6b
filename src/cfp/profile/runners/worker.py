"""The process that owns the devices: `python -m cfp.profile.runners.worker FD`, started by
`cfp.profile.runners.process`, never by hand.

FD is one end of a pair of sockets. What is said over it is in `runners.messages`: first the
setup, then requests, each a call of `Session`. The worker leaves at once when its parent closes the
connection or dies, whatever it is doing then.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from cfp.cluster.ports import join_address, split_address, why_not
from cfp.cluster.wire import Message, Wire
from cfp.profile.runners.exchange import open_exchange
from cfp.profile.runners.job import MeshSpec, WorkerGroup
from cfp.profile.runners.messages import (
    Answer,
    Bug,
    Drop,
    Ready,
    Run,
    Setup,
    Started,
    Submit,
    TimeShares,
)
from cfp.profile.runners.session import Session

WATCH_S = 0.5  # seconds between looks at the parent: so long an orphan may hold the devices
JOIN_S = 120  # seconds for all workers of a group to be there: each imports JAX first


OpenMesh = Callable[[MeshSpec, Mapping[str, Any], WorkerGroup | None], Mesh]


def main(fd: int, session_type: type[Session] = Session, open_mesh: OpenMesh | None = None) -> None:
    """Serves the parent at the other end of FD, with devices that `open_mesh` opens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.set_inheritable(fd, False)  # or the compilers that XLA starts would keep it open
    wire = Wire(socket.socket(fileno=fd), None)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    # always reading, so that the parent never waits to be heard, and its end is noticed at once
    threading.Thread(target=_read, args=(wire, requests), daemon=True).start()
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            try:
                wire.send(message)
            except OSError:
                os._exit(1)  # nobody listens any more

    setup = requests.get()
    assert isinstance(setup, Setup), setup
    mesh = (open_mesh or _open)(setup.mesh, setup.settings, setup.group)
    exchange = None
    if setup.group is not None:
        exchange = open_exchange([*mesh.devices.flat], setup.group.key)
    session = session_type(
        mesh, setup.compile_threads, send, lambda key: send(Started(key)), exchange
    )
    send(Ready())
    while True:
        try:
            match requests.get():
                case Submit(job=job):
                    session.submit(job)
                case Run(key=key):
                    send(Answer(session.run(key)))
                case TimeShares(keys=keys):
                    send(Answer(session.time_shares(keys)))
                case Drop(keys=keys):
                    session.drop(keys)
                case other:
                    raise ValueError(f"no such request: {other}")
        except Exception:  # noqa: BLE001 - the parent is told, and decides
            send(Bug(traceback.format_exc()))


def _open(spec: MeshSpec, settings: Mapping[str, Any], group: WorkerGroup | None) -> Mesh:
    """Returns the mesh, of this process's own devices or, in a group, of all its workers'."""
    update: Any = jax.config.update
    take_settings(settings)
    if spec.platform == "cpu":
        update("jax_platforms", "cpu")
        # goes before --xla_force_host_platform_device_count in XLA_FLAGS, which may be inherited
        update("jax_num_cpu_devices", spec.local)
    if group is not None:
        # What JAX loads from its own cache cannot be given to other processes (`exchange`): it is
        # without its functions when loaded again, which only a run would show.
        update("jax_enable_compilation_cache", False)
        _, port = split_address(group.address)
        if group.index == 0 and (why := why_not(group.listens, port)):
            raise OSError(f"it {why}")
        jax.distributed.initialize(
            group.address,
            group.count,
            group.index,
            cluster_detection_method="deactivate",  # we know, and the devices are set already
            initialization_timeout=JOIN_S,
            coordinator_bind_address=join_address(group.listens, port),
        )
    return mesh_of(spec)


def take_settings(settings: Mapping[str, Any]) -> None:
    """Makes JAX's settings those of the parent."""
    update: Any = jax.config.update
    here: Mapping[str, Any] = jax.config.values
    for name, value in settings.items():
        if name in here and here[name] != value:  # JAX's own tests, imported there, add some
            update(name, value)


def mesh_of(spec: MeshSpec) -> Mesh:
    """Returns the mesh of the devices that this process sees."""
    there: dict[int, Any] = {device.id: device for device in jax.devices(spec.platform)}
    devices = np.array([there[i] for i in spec.device_ids]).reshape(spec.shape)
    return Mesh(devices, spec.axis_names)


def _read(wire: Wire, requests: queue.SimpleQueue[Message]) -> None:
    try:
        while True:
            message = wire.receive(None)
            assert message is not None
            requests.put(message)
    except (EOFError, OSError):
        os._exit(0)  # the main thread may hang: do not ask it
    except BaseException:  # noqa: BLE001 - a worker without its reader would be deaf
        traceback.print_exc()
        os._exit(1)


def _watch_parent(parent: int) -> None:
    """Ends this process when its parent is gone although the connection stays open: a fork of the
    parent may hold it, too."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
