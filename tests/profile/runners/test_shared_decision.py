"""What is decided in one process and done in all of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cfp.errors import CfpError
from cfp.profile.runners.shared_decision import decide_together


def test_a_mesh_of_some_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for ever."""
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))  # all of process 0
    with pytest.raises(CfpError, match=r"no device of process 1, 2: make it of devices of every"):
        decide_together(
            mesh,
            None,
            None,
            lambda team: pytest.fail("decided"),
            pack=lambda value: b"",
            unpack=lambda data: None,
        )
