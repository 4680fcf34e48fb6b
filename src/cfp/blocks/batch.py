"""Which dims are the batch: found in the step's data, and followed through its forward pass.

An argument that is neither a parameter nor optimizer state nor a key is data. Its dims are followed
element by element, in digits (see `cfp.affine.factors`): a reshape of 8 rows into 4 micro-batches
of 2 makes two dims of one, and a loop over the first leaves the second. Dims that meet in an
equation are one. The batch is the dim that most of the data have, among those that no loop runs
over and no contraction sums over (features, and positions that attend to each other, are summed
over). Integers decide where there are any: floating-point arguments may be frozen weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cfp.affine import OpMap
from cfp.blocks.operands import OPERANDS
from cfp.trace import LOOP_ENTER, LOOP_SLICE, Equation, Graph, Op, Role, is_key

# a dim, major to minor, in parts: the size of each and the label of the data's dim it is of, or 0
Digits = tuple[tuple[int, int], ...]
Digested = tuple[Digits, ...]  # the digits of each dim of a tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of the batch.

    `arguments` are the data that have it, with their batch dim; `dims` names the dims of a value
    whose major part is of the batch; `varying` are the values that may depend on it.
    """

    arguments: Mapping[int, int]
    dims: Mapping[int, frozenset[int]]
    varying: frozenset[int]


def find_batch(graph: Graph, parameters: frozenset[int]) -> Batch:
    """Finds the batch; `arguments` is empty for a step that takes no data."""
    labels = _Labels(graph, data_arguments(graph, parameters))
    labels.follow()
    arguments = _batch_arguments(graph, labels)
    batch = {labels.find(labels.of[value][dim]) for value, dim in arguments.items()}
    dims = {
        value: frozenset(
            d
            for d, digits in enumerate(digested)
            if digits and digits[0][1] and labels.find(digits[0][1]) in batch
        )
        for value, digested in labels.found.items()
    }
    return Batch(arguments, dims, _varying(graph, arguments))


def data_arguments(graph: Graph, parameters: frozenset[int]) -> list[int]:
    """Returns the arguments that the forward pass reads and the update does not rewrite, keys
    aside.

    What lies beside parameters in one argument is frozen training state rather than data, unless
    there is nothing else.
    """
    roots = dict(zip(graph.inputs, map(_root, graph.input_paths), strict=True))
    state = {roots[value] for value in parameters}
    found = [
        value
        for value in graph.inputs
        if value not in parameters
        and graph.values[value].shape
        and not is_key(graph.values[value].dtype)
        and any(_is_data(graph.equations[r]) for r in graph.readers[value])
    ]
    return [value for value in found if roots[value] not in state] or found


def _is_data(reader: Equation) -> bool:
    """Returns whether an equation reads data; the update does not, nor does what takes a raw array
    for a key."""
    return reader.role is not Role.UPDATE and reader.primitive != "random_wrap"


def _root(path: str) -> str:
    """Returns the argument that a path leads into: `state` of `state.params['w'][0]`."""
    return path.partition("[")[0].partition(".")[0]


def _batch_arguments(graph: Graph, labels: _Labels) -> dict[int, int]:
    """Returns the data that have the batch, each with the dim that is the batch.

    Where a contraction sums over every dim (tokens that are sent to experts), that counts for
    nothing.
    """
    for excluded in (labels.summed | labels.looped, labels.looped):
        free = _free_dims(graph, labels, set(map(labels.find, excluded)))
        if free:
            break
    integers = {v: dims for v, dims in free.items() if graph.values[v].dtype.kind in "iu"}
    weight: Counter[int] = Counter()  # a dim, as labelled -> elements of the data that have it
    for value, dims in (integers or free).items():
        for dim in dims:
            weight[labels.find(labels.of[value][dim])] += math.prod(graph.values[value].shape)
    if not weight:
        return {}
    batch = max(weight, key=lambda label: weight[label])  # the first dim wins a tie
    size = labels.sizes[batch]
    found: dict[int, int] = {}
    for value, dims in free.items():
        known = [d for d in dims if labels.find(labels.of[value][d]) == batch]
        if not known and dims[0] == 0 and graph.values[value].shape[0] == size:
            known = [0]  # it met none of the others: the second tower of a contrastive model
        if known:
            found[value] = known[0]
    return found


def _free_dims(graph: Graph, labels: _Labels, excluded: set[int]) -> dict[int, list[int]]:
    """Returns the dims of the data that are more than 1 and not excluded."""
    found = {
        value: [
            d
            for d, label in enumerate(of_dims)
            if graph.values[value].shape[d] > 1 and labels.find(label) not in excluded
        ]
        for value, of_dims in labels.of.items()
    }
    return {value: dims for value, dims in found.items() if dims}


def _varying(graph: Graph, start: Iterable[int]) -> frozenset[int]:
    """Returns the values that depend on the data. What a loop carries counts: one iteration does
    not show what comes back to its start."""
    found = set(start)
    for equation in graph.role(Role.FORWARD):
        if equation.primitive == LOOP_ENTER or not found.isdisjoint(equation.inputs):
            found.update(equation.outputs)
    return frozenset(found)


class _Labels:
    """The dims of the data, each with a label, wherever they come by in the forward pass.

    `of` gives an argument's labels, `found` the digits of every value that has some of them;
    `summed` are those that contractions consume, `looped` those that loops run over whole.
    """

    def __init__(self, graph: Graph, data: Sequence[int]) -> None:
        self.graph = graph
        self.of: dict[int, tuple[int, ...]] = {}
        self.found: dict[int, Digested] = {}
        self.summed: set[int] = set()
        self.looped: set[int] = set()
        self.sizes = [0]  # the size of each label's dim; label 0 is none
        for value in data:
            shape = graph.values[value].shape
            first = len(self.sizes)
            self.of[value] = tuple(range(first, first + len(shape)))
            self.sizes += shape
            self.found[value] = tuple(
                ((size, label),) if size > 1 else ()
                for size, label in zip(shape, self.of[value], strict=True)
            )
        self._parent = list(range(len(self.sizes)))

    def find(self, label: int) -> int:
        while self._parent[label] != label:
            label = self._parent[label]
        return label

    def follow(self) -> None:
        known: dict[object, tuple[Digested | None, ...]] = {}
        for equation in self.graph.role(Role.FORWARD):
            op = equation.op
            reads = tuple(self.found.get(value) for value in equation.inputs)
            if op.map is None or not any(reads):
                continue
            key = (op, reads)
            if key not in known:
                known[key] = self._through(op, op.map, reads)
            for value, digested in zip(equation.outputs, known[key], strict=True):
                if digested is not None:
                    self.found[value] = digested

    def _through(
        self, op: Op, mapping: OpMap, reads: Sequence[Digested | None]
    ) -> tuple[Digested | None, ...]:
        """Returns the digits of the results; None where they have nothing of the data's dims."""
        dealt = [
            {} if digested is None else _deal(mapping, operand, digested)
            for operand, digested in enumerate(reads)
        ]
        for parts in dealt:
            for factor, digits in parts.items():
                self._note_consumed(op, mapping, factor, digits)
        results: list[Digested | None] = []
        for result, dims in enumerate(mapping.results):
            factors: dict[int, Digits] = {}
            for operand, parts in enumerate(dealt):
                if mapping.feeds is None or operand in mapping.feeds[result]:
                    for factor, digits in parts.items():
                        self._unite(factors.setdefault(factor, digits), digits)
            here = tuple(
                tuple(digit for f in dim for digit in factors.get(f, ((mapping.sizes[f], 0),)))
                for dim in dims
            )
            labelled = any(label for digits in here for _, label in digits)
            results.append(here if labelled else None)
        return tuple(results)

    def _note_consumed(self, op: Op, mapping: OpMap, factor: int, digits: Digits) -> None:
        for size, label in digits:
            if op.primitive in OPERANDS and factor in mapping.reduced:
                self.summed.add(label)
            sliced = op.primitive == LOOP_SLICE and factor in mapping.operands[0][0]
            if sliced and size == self.sizes[label]:
                self.looped.add(label)

    def _unite(self, left: Digits, right: Digits) -> None:
        """Records that digits which meet in one factor belong to one dim."""
        if [size for size, _ in left] == [size for size, _ in right]:
            for (_, a), (_, b) in zip(left, right, strict=True):
                if a and b:
                    self._parent[self.find(b)] = self.find(a)


def _deal(mapping: OpMap, operand: int, digested: Digested) -> dict[int, Digits]:
    """Returns a dict: factor -> its digits, for the factors of an operand that have some of the
    data's dims."""
    found: dict[int, Digits] = {}
    for dim, digits in zip(mapping.operands[operand], digested, strict=True):
        parts = cut(digits, [mapping.sizes[factor] for factor in dim])
        for factor, part in zip(dim, parts, strict=True):
            if any(label for _, label in part):
                found[factor] = part
    return found


def cut(digits: Digits, sizes: Sequence[int]) -> list[Digits]:
    """Returns the digits of a dim, dealt out to factors of these sizes, major to minor.

    Where they cannot be aligned, the rest keeps a label only if all of it has that one.

    >>> cut(((8, 1), (6, 0)), [4, 2, 6])
    [((4, 1),), ((2, 1),), ((6, 0),)]
    >>> cut(((8, 1), (6, 2)), [16, 3])
    [((8, 1), (2, 2)), ((3, 2),)]
    >>> cut(((8, 1), (6, 2)), [6, 8])
    [((6, 0),), ((8, 0),)]
    """
    left = list(digits)
    parts: list[Digits] = []
    for at, size in enumerate(sizes):
        part: list[tuple[int, int]] = []
        need = size
        while need > 1:
            have, label = left[0]
            common = math.gcd(need, have)
            if common < min(need, have):
                labels = {label for _, label in left}
                rest = labels.pop() if len(labels) == 1 else 0
                return parts + [((s, rest),) for s in sizes[at:]]
            part.append((common, label))
            need //= common
            left[0] = (have // common, label)
            if left[0][0] == 1:
                left.pop(0)
        parts.append(tuple(part))
    return parts
