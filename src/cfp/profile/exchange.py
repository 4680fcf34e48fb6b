"""Processes that run the same programs compile each only once: who comes to it first compiles, the
others go on to the next and load later what came of it. So they compile different programs side by
side.

Compiled programs travel through the store that JAX's distributed runtime keeps for its processes,
and are there until the one that compiled forgets them. Where that does not work (a host of another
kind cannot load them) each process compiles for itself, as it does where nothing is exchanged.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import serialize_executable

from cfp.trace.runtime import key_value_client

WAIT_MS = 24 * 3600 * 1000  # whoever hangs is ended by the process that watches it
_NOTHING = pickle.dumps(None)
_log = logging.getLogger(__name__)


class FailedElsewhere(Exception):
    """Another process found that the program does not compile, and why."""


class Exchange:
    """Of programs on `devices`. A name stands for the same program in every process."""

    def __init__(self, client: Any, devices: Sequence[Any]) -> None:
        self._client = client
        self._devices = [*devices]
        self._given: set[str] = set()

    def claim(self, name: str) -> bool:
        """Whether it is ours to compile; then we have to, others wait for it."""
        try:
            self._client.key_value_set(f"cfp/claimed/{name}", "")
        except jax.errors.JaxRuntimeError as error:
            return "ALREADY_EXISTS" not in str(error)  # else the store is gone, as is the run
        return True

    def compile(self, lowered: jax.stages.Lowered, name: str) -> jax.stages.Compiled:
        """What we have claimed: for all."""
        try:
            compiled = lowered.compile()
        except Exception as error:
            self._give(name, str(error))
            raise
        self._give(name, compiled)
        return compiled

    def load(self, lowered: jax.stages.Lowered, name: str) -> jax.stages.Compiled:
        """What another process has claimed, when it is there; compiled here if it is of no use."""
        content = pickle.loads(self._client.blocking_key_value_get_bytes(_place(name), WAIT_MS))
        if isinstance(content, str):
            raise FailedElsewhere(content)
        if content is not None:
            program, takes, gives = content
            try:
                loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
                    program, takes, gives, execution_devices=self._devices
                )
                return loaded
            except Exception as error:  # noqa: BLE001 - it is for another kind of host
                _log.info("What another process compiled cannot be loaded: %s", error)
        return lowered.compile()

    def forget(self, name: str) -> None:
        """Frees the store of what we gave. Who has not loaded it yet compiles it."""
        if name in self._given:
            self._given.discard(name)
            self._client.key_value_set_bytes(_place(name), _NOTHING, allow_overwrite=True)

    def _give(self, name: str, found: jax.stages.Compiled | str) -> None:
        try:
            content = found if isinstance(found, str) else serialize_executable.serialize(found)
            self._client.key_value_set_bytes(_place(name), pickle.dumps(content))
            self._given.add(name)
        except Exception as error:  # noqa: BLE001 - of a kind that cannot travel, or too large
            _log.info("What was compiled cannot be given to other processes: %s", error)
            self._client.key_value_set_bytes(_place(name), _NOTHING, allow_overwrite=True)


def open_exchange(devices: Sequence[Any]) -> Exchange | None:
    """Between the processes that have these devices; None if it is one."""
    client = key_value_client()
    alone = len({device.process_index for device in devices}) == 1
    return None if alone or client is None else Exchange(client, devices)


def _place(name: str) -> str:
    return f"cfp/compiled/{name}"
