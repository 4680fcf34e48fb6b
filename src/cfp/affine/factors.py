"""Factors: each dim of a tensor is an ordered product of factors, major to minor.

Index `x` of a dim with factors f1, ..., fk (extents n1, ..., nk) has the mixed-radix digits
`x = (...(x1 * n2 + x2) * n3 + ...) + xk`. A factor has one id within its operation; a dim of
extent 1 has no factors (neither has one of extent 0: it holds nothing to depend on).
"""

from collections.abc import Sequence
from math import gcd, lcm, prod

Shape = tuple[int, ...]
Factors = tuple[int, ...]
Dims = tuple[Factors, ...]


def shape_of(sizes: Sequence[int], dims: Dims) -> Shape:
    """Returns the extents of a tensor's dims (a dim without factors counts as 1)."""
    return tuple([prod([sizes[factor] for factor in dim]) for dim in dims])


def align(
    left: Sequence[int], right: Sequence[int], first: int = 0
) -> tuple[list[int], list[Factors], list[Factors]]:
    """Returns the common refinement of two ways to write one index as mixed-radix digits.

    `left` and `right` have equal products. Returns the sizes of the pieces and, for each left
    and each right factor, its pieces, major to minor, numbered from `first`. A piece that both
    sides name is the same digit on both; a piece on one side only could not be aligned.

    A factor between the cumulative products p and q (p | q) holds every digit between cuts u
    and v with p | u | v | q. So a left factor (p, q) and a right factor (r, s) share exactly
    the digit between lcm(p, r) and gcd(q, s), where the one divides the other and is smaller.
    """
    sizes: list[int] = []
    left_cuts, right_cuts = _cuts(left), _cuts(right)
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for i, (p, q) in enumerate(left_cuts):
        for j, (r, s) in enumerate(right_cuts):
            if r >= q or p >= s:
                continue
            u, v = lcm(p, r), gcd(q, s)
            if u < v and v % u == 0:
                found[i, j] = (u, v, first + len(sizes))
                sizes.append(v // u)

    def pieces(cut: tuple[int, int], shared: list[tuple[int, int, int]]) -> Factors:
        out: list[int] = []
        at, end = cut
        for u, v, piece in [*shared, (end, end, -1)]:
            if u > at:
                out.append(first + len(sizes))
                sizes.append(u // at)
            if v > u:
                out.append(piece)
            at = v
        return tuple(out)

    lefts = [
        pieces(cut, [found[i, j] for j in range(len(right)) if (i, j) in found])
        for i, cut in enumerate(left_cuts)
    ]
    rights = [
        pieces(cut, [found[i, j] for i in range(len(left)) if (i, j) in found])
        for j, cut in enumerate(right_cuts)
    ]
    return sizes, lefts, rights


def _cuts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns for each factor the products of all sizes before it and up to it."""
    cuts, at = [], 1
    for size in sizes:
        cuts.append((at, at * size))
        at *= size
    return cuts
