"""Ground truth that knows nothing of factors: change one input element, see which outputs change.

`changed` does it on batches of poisoned inputs, whatever ran them. `jax_truth` runs the real lax
operations, many cases in one compilation. `predicted` says what the maps say, as the union over
all paths from an input to an output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from cfp.affine import Map, OpMap, identity, op_map

FINITE = (1000.0, -1000.0)  # enough where no later operation can hide the change
POISON = (np.nan, *FINITE)


def poisoned(
    inputs: Sequence[np.ndarray], floats: tuple[float, ...] = POISON
) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Inputs with a leading row dim; row 0 is clean, each other row differs in one element.

    Also says, for rows 1 and on, which input and which of its elements (flat) differ.
    """
    where = [
        (i, e) for i, x in enumerate(inputs) for e in range(x.size) for _ in _poison(x, floats)
    ]
    batches = [np.repeat(x[None], len(where) + 1, axis=0) for x in inputs]
    row = 1
    for i, x in enumerate(inputs):
        flat = batches[i].reshape(len(where) + 1, -1)
        for e in range(x.size):
            for value in _poison(x, floats):
                flat[row, e] = value if x.dtype.kind == "f" else (flat[row, e] + value) % _LIMIT
                row += 1
    return batches, where


_LIMIT = 97


def _poison(x: np.ndarray, floats: tuple[float, ...]) -> tuple[Any, ...]:
    if x.dtype == bool:
        return (1,)
    return floats if x.dtype.kind == "f" else (1, 2, 3)


def changed(
    inputs: Sequence[np.ndarray], where: list[tuple[int, int]], output: np.ndarray
) -> list[np.ndarray]:
    """Returns, for each input, the matrix [output element, input element] of what changed."""
    rows = np.asarray(output).reshape(len(where) + 1, -1)
    differs = ~np.isclose(rows[1:], rows[:1], rtol=1e-4, atol=0, equal_nan=True)
    truth = [np.zeros((rows.shape[1], x.size), dtype=bool) for x in inputs]
    for (i, e), row in zip(where, differs, strict=True):
        truth[i][:, e] |= row
    return truth


@dataclass
class Case:
    """A function and inputs; `truth[result][input]` is filled in by `run`."""

    fn: Callable[..., Any]
    inputs: list[np.ndarray]
    name: str = ""
    poison: tuple[float, ...] = POISON
    truth: list[list[np.ndarray]] = field(default_factory=list, repr=False)


def run(cases: Sequence[Case]) -> None:
    """Run all cases in one compilation and write down which outputs changed with which inputs."""
    batches = [poisoned(case.inputs, case.poison) for case in cases]

    def everything(rows: list[list[Any]]) -> list[Any]:
        return [
            jax.tree.leaves(jax.vmap(case.fn)(*row)) for case, row in zip(cases, rows, strict=True)
        ]

    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    outputs = jax.jit(everything, compiler_options=options)([rows for rows, _ in batches])
    for case, (_, where), results in zip(cases, batches, outputs, strict=True):
        case.truth = [changed(case.inputs, where, np.asarray(r)) for r in results]


def maps_of(fn: Callable[..., Any], inputs: Sequence[np.ndarray]) -> list[list[set[Map]]]:
    """Returns, for each result and each input, the maps along all paths of the function's jaxpr."""
    closed = jax.make_jaxpr(fn)(*inputs)
    start = [
        [{identity(x.shape)} if i == j else set() for j in range(len(inputs))]
        for i, x in enumerate(inputs)
    ]
    return _walk(closed.jaxpr, start, len(inputs))


def _walk(jaxpr: Any, start: list[list[set[Map]]], many: int) -> list[list[set[Map]]]:
    env: dict[Any, list[set[Map]]] = dict(zip(jaxpr.invars, start, strict=True))
    nothing: list[set[Map]] = [set() for _ in range(many)]

    def read(atom: Any) -> list[set[Map]]:
        return nothing if isinstance(atom, Literal) else env.get(atom, nothing)

    for eqn in jaxpr.eqns:
        inside = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in ("jit", "pjit"):
            outside = _walk(eqn.params["jaxpr"].jaxpr, inside, many)
        else:
            outside = through(map_of(eqn), inside, many)
        env.update(zip(eqn.outvars, outside, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def map_of(eqn: Any) -> OpMap:
    ins = tuple(tuple(v.aval.shape) for v in eqn.invars)
    outs = tuple(tuple(v.aval.shape) for v in eqn.outvars)
    op = op_map(eqn.primitive.name, eqn.params, ins, outs)
    assert op is not None, f"no rule for {eqn.primitive.name}"
    op.check(ins, outs)
    return op


def through(op: OpMap, inside: list[list[set[Map]]], many: int) -> list[list[set[Map]]]:
    """The maps from the inputs to an operation's results, given those to its operands."""
    outside = []
    for r in range(len(op.results)):
        found: list[set[Map]] = [set() for _ in range(many)]
        for o, maps in enumerate(inside):
            step = op.between(o, r)
            if step is not None:
                for i in range(many):
                    found[i] |= {m.then(step) for m in maps[i]}
        outside.append(found)
    return outside


def matrix(m: Map, out_shape: Sequence[int], in_shape: Sequence[int]) -> np.ndarray:
    """What a map says, in the form of `changed`."""
    said = np.zeros((prod(out_shape), *in_shape), dtype=bool)
    for row, index in enumerate(product(*map(range, out_shape))):
        for needed in m.needs(index):
            said[(row, *needed)] = True
    return said.reshape(prod(out_shape), -1)


def agree(
    maps: set[Map], truth: np.ndarray, out_shape: Sequence[int], in_shape: Sequence[int]
) -> str | None:
    """None, or what is wrong: the exact maps are all true, and nothing is true beyond the maps."""
    if truth.size == 0:
        return None
    upper = np.zeros_like(truth)
    lower = np.zeros_like(truth)
    for m in maps:
        said = matrix(m, out_shape, in_shape)
        upper |= said
        if m.exact:
            lower |= said
    text = f"{[m.show() for m in maps]} for {tuple(in_shape)} -> {tuple(out_shape)}"
    if (truth & ~upper).any():
        return f"unsound: {int((truth & ~upper).sum())} needed elements are missed by {text}"
    if (lower & ~truth).any():
        return f"not exact: {int((lower & ~truth).sum())} elements are not needed in {text}"
    return None


def assert_cases(cases: Sequence[Case]) -> None:
    """Run the cases and compare every input and result with what the maps say."""
    run(cases)
    for case in cases:
        shapes = [x.shape for x in jax.tree.leaves(jax.eval_shape(case.fn, *case.inputs))]
        for r, (by_input, out_shape) in enumerate(
            zip(maps_of(case.fn, case.inputs), shapes, strict=True)
        ):
            for i, maps in enumerate(by_input):
                wrong = agree(maps, case.truth[r][i], out_shape, case.inputs[i].shape)
                assert wrong is None, f"{case.name}, input {i}, result {r}: {wrong}"


def chunks(shape: Sequence[int], dim: int, parts: int) -> np.ndarray:
    """Returns the chunk of `dim` that every element (flat) lies in."""
    index = np.indices(shape)[dim] if shape else np.zeros((), dtype=int)
    return (index // (shape[dim] // parts)).reshape(-1)


def preserved(
    truth: np.ndarray, source: Sequence[int], i: int, target: Sequence[int], j: int, parts: int
) -> bool:
    """Brute force: does every element of chunk p of the target need chunk p of the source only?"""
    same = chunks(target, j, parts)[:, None] == chunks(source, i, parts)[None, :]
    return not (truth & ~same).any()


def divisors(n: int) -> list[int]:
    return [p for p in range(2, n + 1) if n % p == 0]


def values(rng: np.random.Generator, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Distinct whole numbers from 2 on, so that every dependency shows and sums are exact."""
    size = prod(shape)
    return (rng.permutation(size).reshape(shape) + 2).astype(dtype)
