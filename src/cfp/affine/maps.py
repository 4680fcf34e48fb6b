"""Which elements an element needs: maps between the tensors of an operation, and their algebra.

All operands and results of an operation share one factor space (see `space`). For an operand o
and a result r, element `a` of r needs exactly those elements of o whose digits on the factors
present in both equal a's digits; factors in o alone range freely (a contraction, a lookup);
factors in r alone do not matter (a broadcast). An operation that breaks a dim (an unaligned
slice, a reversal, a sort) names it by different factors on its two sides, and says `exact=False`:
an element may need less than is said, never more.

    OpMap.between   the relation of one operand and one result, a `Map`
    Map.then        relations composed along a path
    follow          Eq. 1 of the paper: where a split of one tensor's dim goes in another
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import gcd

from cfp.affine.factors import Dims, Factors, Shape, align, shape_of


@dataclass(frozen=True, slots=True)
class OpMap:
    """How the elements of an operation's results depend on the elements of its operands.

    sizes: the extent (> 1) of every factor.
    operands, results: of each tensor, of each dim, the factors, major to minor.
    reduced: factors that an associative reduction consumes. To split one leaves partial results
        which a sum (max, ...) over the parts completes.
    exact: False where the true dependency may be smaller than what is said here.
    feeds: for each result, the operands it depends on; None: every result on every operand.
    """

    sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduced: frozenset[int] = frozenset()
    exact: bool = True
    feeds: tuple[frozenset[int], ...] | None = None

    def between(self, operand: int, result: int) -> "Map | None":
        """Returns the map from one operand (source) to one result (target); None: unrelated."""
        if self.feeds is not None and operand not in self.feeds[result]:
            return None
        return Map(self.sizes, self.operands[operand], self.results[result], self.exact)

    def check(self, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> None:
        """Raises ValueError unless the map fits these shapes and keeps the algebra's invariants."""
        if any(size < 2 for size in self.sizes):
            raise ValueError(f"A factor of extent below 2: {self}")
        for kind, tensors, shapes in (
            ("operand", self.operands, in_shapes),
            ("result", self.results, out_shapes),
        ):
            if len(tensors) != len(shapes):
                raise ValueError(f"{len(shapes)} {kind}s, but the map has {len(tensors)}: {self}")
            for i, (dims, shape) in enumerate(zip(tensors, shapes, strict=True)):
                if shape_of(self.sizes, dims) != tuple(max(size, 1) for size in shape):
                    raise ValueError(f"{kind} {i} of shape {shape} does not fit {dims}: {self}")
                factors = [factor for dim in dims for factor in dim]
                if len(set(factors)) != len(factors):
                    raise ValueError(f"{kind} {i} has one factor twice: {self}")

    def show(self) -> str:
        """Returns stable short text such as `[a, ^b·c] <- [a, c, *d]`, a letter per factor; `+`
        marks a factor that a reduction consumes."""
        inside = _factors(*self.operands)
        outside = _factors(*self.results)
        marks = dict.fromkeys(outside - inside, "^")
        marks |= dict.fromkeys(inside - outside, "*")
        marks |= dict.fromkeys(self.reduced, "+")
        names = _names((*self.results, *self.operands), marks)
        results = ", ".join(_text(dims, names) for dims in self.results)
        operands = ", ".join(_text(dims, names) for dims in self.operands)
        text = f"{results} {'<-' if self.exact else '<~'} {operands}".rstrip()
        if self.feeds is None:
            return text
        pairs = (f"{r}<-{o}" for r, feeding in enumerate(self.feeds) for o in sorted(feeding))
        return f"{text} ({', '.join(pairs)})"


@dataclass(frozen=True, slots=True)
class Map:
    """What each element of the target needs of the source."""

    sizes: tuple[int, ...]
    source: Dims
    target: Dims
    exact: bool = True

    def then(self, after: "Map") -> "Map":
        """Returns the map from the source of this map to the target of `after`, whose source is
        this target.

        The tensor in the middle has its dims written in the factors of both maps. They are
        refined to their common digits, so composing is exact wherever the digits can be
        aligned. Digits that cannot become different factors on the two sides: each element is
        then said to need all of them, and `exact` falls unless that was so anyway.
        """
        middle, other = shape_of(self.sizes, self.target), shape_of(after.sizes, after.source)
        if middle != other:
            raise ValueError(f"Cannot compose: the target is {middle}, the next source {other}.")
        sizes: list[int] = []
        exact = self.exact and after.exact
        ours, theirs = _factors(self.source), _factors(after.target)
        before: dict[int, Factors] = {}
        behind: dict[int, Factors] = {}
        for left, right in zip(self.target, after.source, strict=True):
            pieces, lefts, rights = align(
                [self.sizes[factor] for factor in left],
                [after.sizes[factor] for factor in right],
                first=len(sizes),
            )
            sizes += pieces
            before.update(zip(left, lefts, strict=True))
            behind.update(zip(right, rights, strict=True))
            left_pieces, right_pieces = set(sum(lefts, ())), set(sum(rights, ()))
            if exact and left_pieces != right_pieces:
                lost = any(f in ours and not right_pieces.issuperset(before[f]) for f in left)
                told = any(f in theirs and not left_pieces.issuperset(behind[f]) for f in right)
                exact = not (lost and told)
        for mine, parts, tensor in ((self, before, self.source), (after, behind, after.target)):
            for factor in (f for dim in tensor for f in dim if f not in parts):
                parts[factor] = (len(sizes),)
                sizes.append(mine.sizes[factor])
        source = tuple(sum((before[f] for f in dim), ()) for dim in self.source)
        target = tuple(sum((behind[f] for f in dim), ()) for dim in after.target)
        return Map(tuple(sizes), source, target, exact).canonical()

    def needs(self, index: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Returns the source elements that one target element needs (for small shapes and
        tests)."""
        digits: dict[int, int] = {}
        for at, dim in zip(index, self.target, strict=True):
            for factor in reversed(dim):
                at, digits[factor] = divmod(at, self.sizes[factor])
        choices: list[list[int]] = []
        for dim in self.source:
            values = [0]
            for f in dim:
                n = self.sizes[f]
                step = [digits[f]] if f in digits else range(n)
                values = [value * n + digit for value in values for digit in step]
            choices.append(values)
        return set(product(*choices))

    def canonical(self) -> "Map":
        """Returns the one way to write this map: equal maps compare and hash equal.

        Neighbours that always occur together are fused, factors are numbered by their first
        appearance (target, then source), unused ones are dropped.
        """
        in_source, in_target = _factors(self.source), _factors(self.target)
        after = {a: b for dim in self.source for a, b in pairwise(dim)}

        def fuses(a: int, b: int, tensor: Dims) -> bool:
            if tensor is self.source:
                return a not in in_target and b not in in_target
            if a not in in_source:
                return b not in in_source
            return after.get(a) == b

        sizes: list[int] = []
        number: dict[int, int] = {}  # the number of every factor that leads a fused run
        inner: set[int] = set()  # factors that follow another in their run
        for tensor in (self.target, self.source):
            for dim in tensor:
                for place, factor in enumerate(dim):
                    if factor in number or factor in inner:
                        continue
                    if place and fuses(dim[place - 1], factor, tensor):
                        inner.add(factor)
                        sizes[-1] *= self.sizes[factor]
                    else:
                        number[factor] = len(sizes)
                        sizes.append(self.sizes[factor])
        source, target = (
            tuple([tuple([number[f] for f in dim if f in number]) for dim in tensor])
            for tensor in (self.source, self.target)
        )
        return Map(tuple(sizes), source, target, self.exact)

    def show(self) -> str:
        """Returns stable short text such as `[a, ^b·c] <- [a, c, *d]`, a letter per factor.

        `*` ranges freely in the source, `^` occurs in the target alone, `1` is a dim of extent
        1, and the arrow of a map that is not exact is `<~`.
        """
        m = self.canonical()
        in_source, in_target = _factors(m.source), _factors(m.target)
        marks = dict.fromkeys(in_target - in_source, "^")
        marks |= dict.fromkeys(in_source - in_target, "*")
        names = _names((m.target, m.source), marks)
        arrow = "<-" if m.exact else "<~"
        return f"{_text(m.target, names)} {arrow} {_text(m.source, names)}"


class Space:
    """Hands out the factors of one operation while a rule is writing its map."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int) -> Factors:
        """Returns a fresh factor, as a dim of its own: `()` where there is nothing to tell
        apart."""
        if size <= 1:
            return ()
        self.sizes.append(int(size))
        return (len(self.sizes) - 1,)

    def dims(self, shape: Iterable[int]) -> Dims:
        """Returns a tensor whose every dim is a fresh factor."""
        return tuple([self.new(size) for size in shape])

    def op(
        self,
        operands: tuple[Dims, ...],
        results: tuple[Dims, ...],
        reduced: Iterable[int] = (),
        exact: bool = True,
        feeds: tuple[frozenset[int], ...] | None = None,
    ) -> OpMap:
        """Returns the map, once all factors are handed out."""
        return OpMap(tuple(self.sizes), operands, results, frozenset(reduced), exact, feeds)


def identity(shape: Shape) -> Map:
    """Returns the map in which each element needs itself."""
    space = Space()
    dims = space.dims(shape)
    return Map(tuple(space.sizes), dims, dims)


def follow(
    sizes: Sequence[int], source: Dims, target: Dims, dim: int, extent: int
) -> tuple[int, int] | None:
    """Returns where a split of one tensor's dim goes in another tensor of the same operation (Eq.
    1).

    Splitting `dim` of the source into P contiguous equal chunks, for any P that divides
    `extent`, corresponds to splitting dim `d` of the target into P chunks, for any P that
    divides `e`; returns (d, e), or None where no such split corresponds. It holds in every
    direction: operand to result, result to operand, operand to operand.

    d is the target dim whose leading factors share a common prefix with those of the source
    dim, C the product of that prefix, and e = gcd(extent, C). Why P | e suffices: let the
    source dim have extent N = C * M. Index x lies in chunk floor(x * P / N), and its digits on
    the prefix, taken together, are X = floor(x / M). P divides C, so a chunk is C/P whole
    values of X, and x lies in chunk floor(X / (C / P)): a function of X and P alone. The target
    dim begins with the same prefix, so the same holds there with its own M. Elements that are
    related have equal digits on shared factors, hence equal X, hence the same chunk. C may be
    larger than `extent` (a coarser split of a longer prefix) or smaller (the prefix limits it):
    only that P divides both was used.
    """
    factors = source[dim]
    if not factors:
        return None
    lead = factors[0]
    for d, others in enumerate(target):
        if others and others[0] == lead:
            shared = 1
            for a, b in zip(factors, others, strict=False):
                if a != b:
                    break
                shared *= sizes[a]
            e = gcd(extent, shared)
            return (d, e) if e > 1 else None
    return None


def _factors(*tensors: Dims) -> set[int]:
    return {factor for dims in tensors for dim in dims for factor in dim}


def _names(tensors: Iterable[Dims], marks: dict[int, str]) -> dict[int, str]:
    names: dict[int, str] = {}
    for factor in (f for dims in tensors for dim in dims for f in dim):
        if factor not in names:
            turn, letter = divmod(len(names), 26)
            names[factor] = (
                marks.get(factor, "") + chr(ord("a") + letter) + (str(turn) * (turn > 0))
            )
    return names


def _text(dims: Dims, names: dict[int, str]) -> str:
    return f"[{', '.join('·'.join(names[f] for f in dim) or '1' for dim in dims)}]"
