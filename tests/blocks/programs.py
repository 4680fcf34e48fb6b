"""Random small forward functions: a list of nodes, each made of earlier ones and of parameters.

Node 0 and 1 are activations, node 2 holds token ids; every step adds nodes. `forward` is an
ordinary JAX function of (parameters, inputs, ids), `train` a step that differentiates and updates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

Shape = tuple[int, ...]
SIZES = (2, 2, 4, 4, 8, 6, 3)
LIMIT = 512  # elements in a tensor


@dataclass
class Step:
    """`fn` takes the parameters, then the nodes `reads`; it gives one node per shape."""

    name: str
    reads: tuple[int, ...]
    shapes: tuple[Shape, ...]
    fn: Callable[..., Any]
    params: tuple[Shape, ...] = ()

    def __repr__(self) -> str:
        made = " ".join(map(str, self.shapes))
        return f"{self.name}{list(self.reads)} params {list(self.params)} -> {made}"


@dataclass(repr=False)
class Program:
    """Nodes in order; `sinks` are those that nothing reads."""

    inputs: tuple[Shape, Shape]
    ids: Shape
    steps: list[Step] = field(default_factory=list)

    def __repr__(self) -> str:  # what hypothesis prints of a counterexample
        lines = [f"inputs {self.inputs} ids {self.ids}"]
        node = 3
        for step in self.steps:
            lines.append(f"{node}: {step}")
            node += len(step.shapes)
        return "\n".join(lines)

    @property
    def shapes(self) -> list[Shape]:
        made = [shape for step in self.steps for shape in step.shapes]
        return [*self.inputs, self.ids, *made]

    def args(self) -> tuple[Any, ...]:
        def array(shape: Shape, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        params = [[array(shape) for shape in step.params] for step in self.steps]
        return params, [array(s) for s in self.inputs], array(self.ids, jnp.int32)

    def forward(self, params: Any, inputs: Any, ids: Any) -> list[Any]:
        nodes = [*inputs, ids]
        read: set[int] = {2}
        for number, (step, weights) in enumerate(zip(self.steps, params, strict=True)):
            with jax.named_scope(f"step{number}"):  # the backward pass keeps it
                results = step.fn(*weights, *(nodes[i] for i in step.reads))
            nodes += results if isinstance(results, (list, tuple)) else [results]
            read.update(step.reads)
        return [node for i, node in enumerate(nodes) if i not in read]

    def train(self, params: Any, inputs: Any, ids: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> Any:
            return sum(jnp.sum(sink * sink) for sink in self.forward(params, inputs, ids))

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    def scan(self, params: Any, inputs: Any, ids: Any) -> Any:
        """The program as the body of a loop over its inputs."""

        def body(carry: Any, turn: Any) -> tuple[Any, Any]:
            return carry, self.forward(params, turn, ids)

        return jax.lax.scan(
            body, jnp.float32(0), jax.tree.map(lambda x: jnp.stack([x] * 2), inputs)
        )


class Draw:
    """Hypothesis's `draw`, by the few questions that steps ask."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw

    def upto(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.upto(0, len(options) - 1)]

    def order(self, count: int) -> list[int]:
        return list(self._draw(st.permutations(range(count))))


def _node(d: Draw, shapes: list[Shape], low: int = 1) -> int | None:
    """A node of floats of at least this rank, late ones more often."""
    options = [i for i, s in enumerate(shapes) if i != 2 and len(s) >= low]
    if not options:
        return None
    return int(options[-1 - min(d.upto(0, 3), d.upto(0, len(options) - 1), len(options) - 1)])


def matmul(d: Draw, shapes: list[Shape]) -> Step | None:
    """A node by a parameter: contracts one dim, batches over another at times."""
    x = _node(d, shapes)
    if x is None:
        return None
    shape = shapes[x]
    c = d.one([len(shape) - 1, len(shape) - 1, d.upto(0, len(shape) - 1)])
    batch = [b for b in range(len(shape)) if b != c and d.upto(0, 5) == 0][:1]
    new = tuple(d.one(SIZES) for _ in range(d.one((1, 1, 1, 2, 0))))
    weight = (*(shape[b] for b in batch), shape[c], *new)
    numbers = (((c,), (len(batch),)), (tuple(batch), tuple(range(len(batch)))))
    rest = [n for i, n in enumerate(shape) if i != c and i not in batch]
    out = (*(shape[b] for b in batch), *rest, *new)
    return Step("matmul", (x,), (out,), lambda w, a: lax.dot_general(a, w, numbers), (weight,))


def product(d: Draw, shapes: list[Shape]) -> Step | None:
    """Two nodes: contracts one or no pair of equal dims, batches over others."""
    x, y = _node(d, shapes), _node(d, shapes)
    if x is None or y is None:
        return None
    left, right = list(range(len(shapes[x]))), list(range(len(shapes[y])))
    pairs: list[tuple[int, int]] = []
    for _ in range(d.upto(1, 3)):
        equal = [(i, j) for i in left for j in right if shapes[x][i] == shapes[y][j]]
        if equal:
            pairs.append(d.one(equal))
            left.remove(pairs[-1][0])
            right.remove(pairs[-1][1])
    if not pairs:
        return None
    contract = pairs[: d.one((1, 1, 1, 0))]
    batch = [pair for pair in pairs if pair not in contract]
    numbers = tuple(tuple(zip(*part, strict=True)) or ((), ()) for part in (contract, batch))
    out = tuple(shapes[x][i] for i, _ in batch)
    out += tuple(shapes[x][i] for i in left) + tuple(shapes[y][j] for j in right)
    return Step("product", (x, y), (out,), lambda a, b: lax.dot_general(a, b, numbers))


def unary(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    fn = d.one((jnp.tanh, jnp.negative, jnp.sin, jax.nn.silu))
    return None if x is None else Step("unary", (x,), (shapes[x],), fn)


def binary(d: Draw, shapes: list[Shape]) -> Step | None:
    """Two nodes of one shape, or one that broadcasts to the other."""
    x = _node(d, shapes)
    if x is None:
        return None
    same = [i for i, s in enumerate(shapes) if i != 2 and s == shapes[x] and i != x]
    tails = [i for i, s in enumerate(shapes) if i != 2 and s and s == shapes[x][-len(s) :]]
    y = d.one(same or tails)
    fn = d.one((jnp.add, jnp.multiply, jnp.maximum))
    return Step("binary", (x, y), (shapes[x],), fn)


def bias(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    weight = shapes[x][d.upto(0, len(shapes[x]) - 1) :]
    return Step("bias", (x,), (shapes[x],), lambda w, a: a + w, (weight,))


def reshape(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    shape = list(shapes[x])
    at = d.upto(0, len(shape) - 1)
    if d.upto(0, 1) and at + 1 < len(shape):
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        major = d.one([n for n in range(1, shape[at] + 1) if shape[at] % n == 0])
        shape[at : at + 1] = [major, shape[at] // major]
    out = tuple(shape)
    return Step("reshape", (x,), (out,), lambda a: a.reshape(out))


def transpose(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes, 2)
    if x is None:
        return None
    order = d.order(len(shapes[x]))
    out = tuple(shapes[x][i] for i in order)
    return Step("transpose", (x,), (out,), lambda a: jnp.transpose(a, order))


def broadcast(d: Draw, shapes: list[Shape]) -> Step | None:
    """A new dim, merged with the next at times (grouped queries)."""
    x = _node(d, shapes)
    if x is None:
        return None
    at, size = d.upto(0, len(shapes[x])), d.one((2, 4))
    wide = (*shapes[x][:at], size, *shapes[x][at:])
    out = wide
    if at < len(shapes[x]) and d.upto(0, 1):
        out = (*shapes[x][:at], size * shapes[x][at], *shapes[x][at + 1 :])
    return Step(
        "broadcast",
        (x,),
        (out,),
        lambda a: jnp.broadcast_to(jnp.expand_dims(a, at), wide).reshape(out),
    )


def norm(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    return Step(
        "norm", (x,), (shapes[x],), lambda a: a / (1 + jnp.mean(a * a, axis=at, keepdims=True))
    )


def softmax(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    return Step("softmax", (x,), (shapes[x],), lambda a: jax.nn.softmax(a, axis=at))


def reduce(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes, 2)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    out = (*shapes[x][:at], *shapes[x][at + 1 :])
    fn = d.one((jnp.sum, jnp.max))
    return Step("reduce", (x,), (out,), lambda a: fn(a, axis=at))


def cut(d: Draw, shapes: list[Shape]) -> Step | None:
    """A slice, strided or not."""
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    size = shapes[x][at]
    start, stride = d.upto(0, size - 1), d.one((1, 1, 2))
    stop = d.upto(start + 1, size)
    many = len(range(start, stop, stride))
    out = (*shapes[x][:at], many, *shapes[x][at + 1 :])
    fn = lambda a: lax.slice_in_dim(a, start, stop, stride, at)  # noqa: E731
    return Step("slice", (x,), (out,), fn)


def split(d: Draw, shapes: list[Shape]) -> Step | None:
    """Splits a tensor into equal parts: [q|k|v]."""
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    many = d.one([n for n in (1, 2, 3) if shapes[x][at] % n == 0])
    out = (*shapes[x][:at], shapes[x][at] // many, *shapes[x][at + 1 :])
    return Step("split", (x,), (out,) * many, lambda a: jnp.split(a, many, axis=at))


def join(d: Draw, shapes: list[Shape]) -> Step | None:
    """Concatenates two nodes that fit."""
    x = _node(d, shapes)
    if x is None:
        return None
    shape = shapes[x]
    at = d.upto(0, len(shape) - 1)

    def fits(other: Shape) -> bool:
        return len(other) == len(shape) and all(
            i == at or n == m for i, (n, m) in enumerate(zip(shape, other, strict=True))
        )

    y = d.one([i for i, s in enumerate(shapes) if i != 2 and fits(s)])
    out = (*shape[:at], shape[at] + shapes[y][at], *shape[at + 1 :])
    return Step("concatenate", (x, y), (out,), lambda a, b: jnp.concatenate([a, b], axis=at))


def pad(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    low, high, gap = d.upto(0, 2), d.upto(0, 2), d.one((0, 0, 1))
    config = [(low, high, gap) if i == at else (0, 0, 0) for i in range(len(shapes[x]))]
    size = low + high + shapes[x][at] + (shapes[x][at] - 1) * gap
    out = (*shapes[x][:at], size, *shapes[x][at + 1 :])
    return Step("pad", (x,), (out,), lambda a: lax.pad(a, jnp.float32(0), config))


def lookup(d: Draw, shapes: list[Shape]) -> Step | None:
    """Rows of a parameter; of a node along some dim, at times."""
    mode = {"mode": "clip"}
    if d.upto(0, 2):
        table = (d.one(SIZES), *(d.one(SIZES) for _ in range(d.one((1, 1, 2)))))
        out = (*shapes[2], *table[1:])
        return Step("lookup", (2,), (out,), lambda w, ids: w.at[ids].get(**mode), (table,))
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    out = (*shapes[x][:at], *shapes[2], *shapes[x][at + 1 :])
    return Step("take", (x, 2), (out,), lambda a, ids: jnp.take(a, ids, axis=at, **mode))


def along(d: Draw, shapes: list[Shape]) -> Step | None:
    """cumsum, sort, reverse."""
    x = _node(d, shapes)
    if x is None:
        return None
    at = d.upto(0, len(shapes[x]) - 1)
    fn = d.one((jnp.cumsum, jnp.sort, jnp.flip))
    return Step("along", (x,), (shapes[x],), lambda a: fn(a, axis=at))


def mask(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes, 2)
    if x is None:
        return None
    return Step(
        "mask", (x,), (shapes[x],), lambda a: jnp.where(jnp.tri(*a.shape[-2:]) > 0, a, -9.0)
    )


def attend(d: Draw, shapes: list[Shape]) -> Step | None:
    """q, k, v from one or two nodes of rank 3, heads split off, scores, values: joins siblings."""
    x = _node(d, shapes, 3)
    if x is None or len(shapes[x]) != 3:
        return None
    fits = [i for i, s in enumerate(shapes) if i != 2 and len(s) == 3 and s[0] == shapes[x][0]]
    y = d.one([x, *fits, *(i for i in fits if i != x)])
    heads, groups, size = d.one((2, 4)), d.one((1, 1, 2)), d.one((2, 4))
    (batch, rows, width), wide = shapes[x], shapes[y][2]
    out = (batch, rows, heads * groups * size)

    def fn(wq: Any, wk: Any, wv: Any, a: Any, b: Any) -> Any:
        q = (a @ wq).reshape(batch, rows, heads * groups, size)
        k, v = ((b @ w).reshape(batch, -1, heads, size) for w in (wk, wv))
        k, v = (jnp.repeat(t, groups, axis=2) for t in (k, v))
        probs = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        return jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(out)

    weights = ((width, out[2]), (wide, heads * size), (wide, heads * size))
    return Step("attend", (x, y), (out,), fn, weights)


def relative(d: Draw, shapes: list[Shape]) -> Step | None:
    """q by relative positions: siblings of which one has no batch."""
    x, y = _node(d, shapes, 2), _node(d, shapes, 2)
    if x is None or y is None or len(shapes[y]) != 2:
        return None
    heads, size = d.one((2, 4)), d.one((2, 4))
    weights = ((shapes[x][-1], heads * size), (shapes[y][-1], heads * size))

    def fn(wq: Any, wr: Any, a: Any, b: Any) -> Any:
        q = (a @ wq).reshape(*a.shape[:-1], heads, size)
        r = (b @ wr).reshape(-1, heads, size)
        return jnp.einsum("...hd,rhd->h...r", q, r)

    out = (heads, *shapes[x][:-1], shapes[y][0])
    return Step("relative", (x, y), (out,), fn, weights)


def gate(d: Draw, shapes: list[Shape]) -> Step | None:
    x = _node(d, shapes)
    if x is None:
        return None
    weight = (shapes[x][-1], d.one(SIZES))
    out = (*shapes[x][:-1], weight[1])
    fn = lambda u, w, a: jax.nn.silu(a @ u) * (a @ w)  # noqa: E731
    return Step("gate", (x,), (out,), fn, (weight, weight))


CONTRACTING = (matmul, matmul, matmul, product, product, gate, attend, relative, lookup)
MOVING = (reshape, reshape, transpose, broadcast, cut, split, join, pad, along)
OTHER = (unary, binary, binary, bias, norm, softmax, reduce, mask)
KINDS = (*CONTRACTING, *CONTRACTING, *MOVING, *OTHER)


@st.composite
def programs(draw: Callable[[Any], Any], longest: int = 10) -> Program:
    d = Draw(draw)
    rank = d.one((2, 2, 3, 3, 4))
    first = tuple(d.one(SIZES) for _ in range(rank))
    second = first if d.upto(0, 1) else (first[0], *(d.one(SIZES) for _ in range(rank - 1)))
    program = Program((first, second), tuple(d.one((2, 4)) for _ in range(d.upto(1, 2))))
    program.steps.append(_first(d, program.shapes))
    for _ in range(d.upto(1, longest)):
        step = d.one(KINDS)(d, program.shapes)
        if step is not None and all(0 < math.prod(s) <= LIMIT and len(s) < 7 for s in step.shapes):
            program.steps.append(step)
    return program


def _first(d: Draw, shapes: list[Shape]) -> Step:
    """A program contracts at least once."""
    step = matmul(d, shapes)
    assert step is not None
    return step
