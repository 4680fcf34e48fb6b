"""Every forward equation outside the blocks gets a home: the first block that reads it.

Norms, masks, dropout, casts of parameters: computed for their reader, split as the reader
wants (the paper's back-propagation into parameter branches). A producer that several blocks
read is placed with the first, and the others reshard if they disagree. What no block reads (a
loss, a metric) stays with the last block it comes from. An equation in a loop stays with a
block of that loop.
"""

from __future__ import annotations

from cfp.blocks.grow import Growth
from cfp.trace import Graph, Role


def place(graph: Graph, growth: Growth) -> dict[int, int]:
    """Returns a dict: forward equation -> block, for all of them. Blocks run in order, so no reader
    comes before what it reads."""
    home = {member: block.index for block in growth.blocks for member in block.members}
    in_loop: dict[int | None, dict[int, None]] = {None: {}}  # loop -> its blocks, in order
    for block in growth.blocks:
        for loop in (*graph.loop_path(block.loop), None):
            in_loop.setdefault(loop, {})[block.index] = None
    leftover: list[int] = []
    for equation in reversed(graph.equations):
        if equation.role is not Role.FORWARD or equation.index in home:
            continue
        allowed = in_loop.get(equation.loop, in_loop[None])
        readers = [
            home[r]
            for value in equation.outputs
            for r in graph.readers[value]
            if r in home and home[r] in allowed
        ]
        if readers:
            home[equation.index] = min(readers)
        else:
            leftover.append(equation.index)
    for index in reversed(leftover):
        equation = graph.equations[index]
        allowed = in_loop.get(equation.loop, in_loop[None])
        producers = {
            home[producer]
            for value in equation.inputs
            if (producer := graph.values[value].producer) is not None and producer in home
        }
        known = (growth.sources_of(equation.inputs) | producers) & allowed.keys()
        home[index] = max(known, default=next(iter(allowed)))
    return home
