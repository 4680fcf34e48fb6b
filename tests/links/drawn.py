"""Random links and networks, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from cfp.links import Curve, Link, Network
from cfp.links.link import COLLECTIVES

times_us = st.floats(1, 1e5)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    count = draw(st.integers(2, 5))
    sizes = draw(st.lists(st.integers(1, 2**30), min_size=count, max_size=count, unique=True))
    times = draw(st.lists(times_us, min_size=count, max_size=count))
    return Curve(tuple(sorted(sizes)), tuple(1e-6 * time for time in sorted(times)))


@st.composite
def links(draw: st.DrawFn, name: str = "drawn") -> Link:
    groups = st.dictionaries(st.sampled_from([2, 4, 16]), curves(), min_size=1, max_size=2)
    shared = draw(groups), draw(groups)  # fewer draws than kinds: examples are made faster
    tables = {kind: shared[i % 2] for i, kind in enumerate(COLLECTIVES)}
    return Link(name, "node", None, "drawn", None, tables)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    count = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    axes = ("x", "y", "z")[:count]
    return Network(axes, tuple(sizes), tuple(draw(links(axis)) for axis in axes))


def straight(name: str, latency_s: float, bytes_per_s: float) -> Link:
    """Returns a link whose every collective takes latency + bytes / bandwidth over two devices."""
    ends = (1, 2**30)
    curve = Curve(ends, tuple(latency_s + size / bytes_per_s for size in ends))
    return Link(name, "node", None, "made up", None, {kind: {2: curve} for kind in COLLECTIVES})
