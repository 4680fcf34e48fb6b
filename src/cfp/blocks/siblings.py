"""Blocks that meet without one needing the other: q, k and v; gate and up.

They become one block if the equation where they meet preserves the candidate dims of both;
candidates that meet in one dim are one candidate.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cfp.blocks.ownership import Growing, Ownership, Positions
from cfp.trace import Equation, Op


def find_siblings(
    owned: Ownership, equation: Equation, latest: Growing, sources: frozenset[int]
) -> list[Growing]:
    """Returns earlier blocks that feed the equation their dims and that `latest` does not need."""
    found: list[Growing] = []
    for index in sorted(sources - {latest.index}, reverse=True):
        block = owned.all_blocks[index]
        if block.loop != latest.loop:
            continue
        feeding = [value for value in equation.inputs if index in owned.roots(value)]
        carries = any(owned.carries(value, block) for value in feeding)
        if carries and not _needs(owned, latest, index):
            found.append(block)
    return found


def _needs(owned: Ownership, block: Growing, earlier: int) -> bool:
    """Returns whether `block` depends on block `earlier`, directly or through others."""
    seen: set[int] = set()
    todo = [block.index]
    while todo:
        for before in map(owned.find, owned.all_blocks[todo.pop()].before):
            if before == earlier:
                return True
            if before > earlier and before not in seen:
                seen.add(before)
                todo.append(before)
    return False


def merge(
    owned: Ownership, equation: Equation, sibling: Growing, latest: Growing, moved: list[Positions]
) -> list[Positions] | None:
    """Makes `sibling` part of `latest` if the equation preserves both; else None."""
    if any(owned.find(block) < latest.index for block in sibling.after):
        return None  # a block in between reads the sibling: it could not run later
    theirs = [i for i, v in enumerate(equation.inputs) if sibling.index in owned.roots(v)]
    if not all(owned.carries(equation.inputs[i], sibling) for i in theirs):
        return None
    other = owned.move(equation, theirs)
    if isinstance(other, str):
        return None
    ours = [i for i, v in enumerate(equation.inputs) if latest.index in owned.roots(v)]
    pairs = _pairs(owned, equation.op, (ours, moved), (theirs, other))
    if pairs is None:
        return None
    pairs.update(_summed_pair(owned, sibling, latest))

    owned.unite_blocks(sibling.index, latest.index)
    latest.seeds = sorted(latest.seeds + sibling.seeds)
    latest.members = sorted(latest.members + sibling.members)
    latest.before |= {block for block in sibling.before if owned.find(block) != latest.index}
    latest.after |= sibling.after
    latest.ended_by.update(sibling.ended_by)
    for identity in sibling.candidates:
        into = pairs.get(identity)
        if into is None:
            latest.candidates.append(identity)
            continue
        owned.unite_candidates(identity, into)
        mine, old = owned.candidates[into], owned.candidates[identity]
        owned.candidates[into] = replace(
            mine,
            extent=math.gcd(mine.extent, old.extent),
            seeds={**old.seeds, **mine.seeds},
        )
    return [
        {**{pairs.get(c, c): where for c, where in b.items()}, **a}
        for a, b in zip(moved, other, strict=True)
    ]


def _pairs(
    owned: Ownership,
    op: Op,
    mine: tuple[list[int], list[Positions]],
    other: tuple[list[int], list[Positions]],
) -> dict[int, int] | None:
    """Returns which candidate of the other block is which of mine: those that meet in one dim.

    A candidate that meets none is fine where the other side has no such dim (broadcast).
    """
    assert op.map is not None
    pairs: dict[int, int] = {}
    for result, (a, b) in enumerate(zip(mine[1], other[1], strict=True)):
        at = {dim: identity for identity, (dim, _) in a.items()}
        dims = op.map.results[result]
        for identity, (dim, extent) in b.items():
            partner = at.pop(dim, None)
            if partner is None:
                if _present(op, mine[0], dims[dim][0]):
                    return None
                continue
            common = math.gcd(extent, a[partner][1])
            if pairs.setdefault(identity, partner) != partner or not (
                owned.still_divides(identity, common) and owned.still_divides(partner, common)
            ):
                return None
        if any(_present(op, other[0], dims[dim][0]) for dim in at):
            return None
    return pairs


def _summed_pair(owned: Ownership, sibling: Growing, latest: Growing) -> dict[int, int]:
    """Returns which summed candidates pair. They leave no dim to meet in, so they pair if the same
    axes fit both."""

    def summed(block: Growing) -> list[int]:
        return [c for c in block.candidates if owned.candidates[c].sums]

    pairs = zip(summed(sibling), summed(latest), strict=False)
    return {
        a: b
        for a, b in pairs
        if owned.fitting(a) == owned.fitting(b)
        and math.gcd(owned.candidates[a].extent, owned.candidates[b].extent) > 1
    }


def _present(op: Op, operands: list[int], factor: int) -> bool:
    """Returns whether any of the operands has a dim made of this factor."""
    assert op.map is not None
    return any(factor in dim for i in operands for dim in op.map.operands[i])
