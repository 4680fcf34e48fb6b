"""Processes that run the same programs compile each only once: who comes to it first compiles, the
others go on to the next and load later what came of it. So they compile different programs side by
side.

Compiled programs travel through the store that JAX's distributed runtime keeps for its processes,
and are there until the one that compiled forgets them. Where that does not work (a host of another
kind cannot load them) each process compiles for itself, as it does where nothing is exchanged.

Strangers can write to that store, and to load a compiled program is to run code. So what is put
there has a MAC under a key that the processes have from elsewhere; the name under which it is kept
is part of what is signed. What has no such MAC is not even read: the process compiles for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import serialize_executable

from cfp.cluster.wire import MAC_BYTES, WireError, check, decode, encode, sign
from cfp.trace.runtime import key_value_client

WAIT_MS = 24 * 3600 * 1000  # whoever hangs is ended by the process that watches it
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Handover:
    """A serialised executable, or why there is none, or neither once it is forgotten."""

    program: bytes | None = None
    failed: str | None = None


class FailedElsewhere(Exception):
    """Another process found that the program does not compile, and why."""


class Exchange:
    """Exchanges programs on `devices`. A name stands for one program in every process; all of them
    know `key`."""

    def __init__(self, client: Any, devices: Sequence[Any], key: bytes) -> None:
        self._client = client
        self._devices = [*devices]
        self._key = key
        self._given: set[str] = set()

    def claim(self, name: str) -> bool:
        """Returns whether a program is ours to compile; then we have to, since others wait for
        it."""
        try:
            self._client.key_value_set(f"cfp/claimed/{name}", "")
        except jax.errors.JaxRuntimeError as error:
            return "ALREADY_EXISTS" not in str(error)  # else the store is gone, as is the run
        return True

    def compile(self, lowered: jax.stages.Lowered, name: str) -> jax.stages.Compiled:
        """Returns the program that we have claimed, compiled for all."""
        try:
            compiled = lowered.compile()
        except Exception as error:
            self._give(name, str(error))
            raise
        self._give(name, compiled)
        return compiled

    def load(self, lowered: jax.stages.Lowered, name: str) -> jax.stages.Compiled:
        """Returns the program that another process has claimed, when it is there; it is compiled
        here if that one is of no use."""
        data = self._client.blocking_key_value_get_bytes(_place(name), WAIT_MS)
        try:
            given = self._read(name, data)
        except WireError as error:
            _log.warning("Someone has tampered with the program %s, not used: %s", name, error)
            given = Handover()
        if given.failed is not None:
            raise FailedElsewhere(given.failed)
        if given.program is not None:
            try:
                loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
                    given.program,
                    jax.tree.structure(lowered.args_info),
                    lowered.out_tree,
                    execution_devices=self._devices,
                )
                return loaded
            except Exception as error:  # noqa: BLE001 - it is for another kind of host
                _log.info("What another process compiled cannot be loaded: %s", error)
        return lowered.compile()

    def forget(self, name: str) -> None:
        """Frees the store of what we gave. Who has not loaded it yet compiles it."""
        if name in self._given:
            self._given.discard(name)
            self._put(name, Handover(), again=True)

    def _give(self, name: str, found: jax.stages.Compiled | str) -> None:
        try:
            # without its trees: who loads it has them
            given = (
                Handover(failed=found)
                if isinstance(found, str)
                else Handover(serialize_executable.serialize(found)[0])
            )
            self._put(name, given)
            self._given.add(name)
        except Exception as error:  # noqa: BLE001 - of a kind that cannot travel, or too large
            _log.info("What was compiled cannot be given to other processes: %s", error)
            self._put(name, Handover(), again=True)

    def _put(self, name: str, given: Handover, *, again: bool = False) -> None:
        data = encode(given)
        signed = sign(self._key, name.encode(), data) + data
        self._client.key_value_set_bytes(_place(name), signed, allow_overwrite=again)

    def _read(self, name: str, data: bytes) -> Handover:
        mac, given = data[:MAC_BYTES], data[MAC_BYTES:]
        check(self._key, mac, name.encode(), given)
        return decode(given, Handover)


def open_exchange(devices: Sequence[Any], key: bytes) -> Exchange | None:
    """Returns the exchange between the processes that have these devices; None if there is only
    one."""
    client = key_value_client()
    alone = len({device.process_index for device in devices}) == 1
    return None if alone or client is None else Exchange(client, devices, key)


def _place(name: str) -> str:
    return f"cfp/compiled/{name}"
