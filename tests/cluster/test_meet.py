"""Processes that meet have the same cfp; who can share a device can."""

from __future__ import annotations

import importlib
import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cfp.cluster.link import Link
from cfp.cluster.share import shareable
from cfp.errors import CfpError

meet = importlib.import_module("cfp.cluster.meet")  # the package has a function of that name


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(told: dict[str, Any]) -> None:
        connected = socket.create_connection(("127.0.0.1", told["port"]))
        hello = {"process": 1, "host": "boxb", "version": "0.0.1"}
        connected.sendall(json.dumps(hello).encode().ljust(meet._HELLO_BYTES))
        Link(connected, told["secret"].encode(), accepts=False).close()

    def broadcast(told: dict[str, Any]) -> dict[str, Any]:
        threading.Thread(target=follow, args=(told,), daemon=True).start()
        return told

    monkeypatch.setattr(meet, "_broadcast", broadcast)
    with pytest.raises(CfpError, match=r"Process 1 on boxb has cfp 0.0.1, .* install the same"):
        meet._lead(2)


@pytest.mark.parametrize(
    ("platform", "stats", "expected"),
    [
        ("cpu", None, True),
        ("tpu", None, False),
        ("gpu", None, True),
        ("gpu", {"pool_bytes": 10, "bytes_limit": 100}, True),
        ("gpu", {"pool_bytes": 75, "bytes_limit": 100}, False),  # taken in advance
    ],
)
def test_who_can_share(platform: str, stats: dict[str, int] | None, expected: bool) -> None:
    device = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    assert shareable(device) is expected
