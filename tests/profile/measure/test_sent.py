"""What programs send, by the user's source line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cfp.links.collectives import MeshCollective, Piece
from cfp.profile.measure.sent import UNKNOWN, ProgramSends, sent_by
from cfp.profile.runners.executable import _collectives
from cfp.trace import source_line, trace

GRAPH = trace(lambda x: jnp.tanh(x @ x).sum(), jnp.ones((4, 4)))


def sums(times: int, *names: str) -> MeshCollective:
    pieces = tuple(Piece(100 * (i + 1), (25,), "f32", name) for i, name in enumerate(names))
    return MeshCollective("all-reduce", (0,), times, pieces)


def test_a_line_has_a_row_for_every_kind_and_axes() -> None:
    product, tanh = "jit(f)/jvp(cfp[0])/dot_general", "jit(f)/cfp[1]/tanh"
    found = sent_by(
        [
            ProgramSends(GRAPH, 1.0, [sums(3, product, "args[0]"), sums(1, tanh)]),
            ProgramSends(GRAPH, 0.5, [sums(2, product)]),
        ]
    )
    line = source_line(GRAPH.equations[0])
    assert line == source_line(GRAPH.equations[1])
    assert [(row.source, row.times, row.bytes) for row in found] == [
        (UNKNOWN, 3.0, 600.0),
        (line, 5.0, 500.0),
    ]
    part = MeshCollective("all-reduce", None, 1, sums(1, product).pieces)
    assert len(sent_by([ProgramSends(GRAPH, 1.0, [sums(1, product), part])])) == 2
    assert sent_by([]) == ()


class Shown:
    """A compiled program that shows this text of itself."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def as_text(self) -> str | None:
        return self.text


def test_a_program_that_cannot_be_read_is_measured_all_the_same() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(4)).compile()
    assert _collectives(compiled, mesh) == ()
    for text in (None, "of another form"):
        assert _collectives(Shown(text), mesh) is None  # type: ignore[arg-type]
