"""docs/architecture.md is what its script writes today."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from docs import architecture


def test_the_page_is_what_the_stages_print(request: pytest.FixtureRequest) -> None:
    text = architecture.render(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",)))
    if request.config.getoption("--update-goldens"):
        architecture.PAGE.write_text(text)
    assert text == architecture.PAGE.read_text(), "run python -m docs.architecture"


def test_it_names_every_room() -> None:
    source = architecture.PAGE.parent.parent / "src" / "cfp"
    rooms = {path.parent.name for path in source.glob("*/__init__.py")}
    assert rooms == {room for room in architecture.ROOMS if "." not in room}
