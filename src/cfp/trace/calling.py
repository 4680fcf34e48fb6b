"""How the arguments that users write become arrays, and the arrays become what users get back.

A step is planned as a function of arrays, one pytree of them per argument, and returns arrays. What
users write is that or one of two more:

    Calling        plain JAX: arguments and results are pytrees of arrays and numbers already
    StaticLeaves   Equinox: arguments also have leaves that are no arrays (a function, a flag); they
                   belong to the program, as in `eqx.filter_jit`
    LiveObjects    Flax NNX: arguments are objects that the step changes in place, as in `nnx.jit`

`cfp.trace.find_calling` tells which. A calling describes the one program that was traced;
arguments of another structure, or with other static values, make another program, and are refused
with what differs (`AnotherProgram`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from cfp.errors import CfpError

_AGAIN = "Plan the step with the arguments that it is called with."


class AnotherProgram(CfpError):
    """The arguments make another program than the one that was traced: their structure differs, or
    what is static in them."""


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is data by itself; a Python number is data in plain JAX steps
    alone."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """What a step returns besides arrays: the structure, and per leaf what is known of it already,
    None for arrays."""

    tree: Any
    known: tuple[Any, ...]


Tell = Callable[[Returned], None]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calling:
    """How a step is called: plain JAX's way, and what the other two have in common. `returned` is
    known once the step has been traced: tracing calls `pure`, which tells it."""

    returned: Returned = field(default_factory=lambda: Returned(None, ()))

    def arrays(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Returns one pytree of arrays per argument."""
        return tuple(args)

    def with_arrays(self, args: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the user's arguments with these arrays in place of theirs."""
        del args
        return tuple(arrays)

    def results(self, args: Sequence[Any], arrays: Any) -> Any:
        """Returns what the user's call returns, from the arrays that the planned step returned."""
        del args
        return arrays

    def pure(self, step: Callable[..., Any], tell: Tell = lambda _: None) -> Callable[..., Any]:
        """Returns the step as a function of arrays, which tells what it returns besides arrays."""
        del tell
        return lambda *arrays: step(*arrays)

    def after(self, returned: Sequence[Returned]) -> Calling:
        """Returns the calling with what tracing told."""
        return replace(self, returned=returned[-1]) if returned else self

    def output_paths(self, names: Sequence[str], result: Any) -> list[str]:
        """Returns a path per leaf of what `pure` returns; `names` are the arguments'."""
        del names
        return _paths("result", result)


PLAIN = Calling()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StaticLeaves(Calling):
    """Leaves that are no arrays belong to the program: Equinox's habit.

    `tree` is the structure of the arguments, `statics` has their leaves with None in place of
    arrays.
    """

    paths: tuple[str, ...]
    tree: Any
    statics: tuple[Any, ...]

    def arrays(self, args: Sequence[Any]) -> tuple[Any, ...]:
        leaves, tree = jax.tree.flatten(tuple(args))
        if tree != self.tree:
            raise AnotherProgram(f"The plan is for arguments of structure {self.tree}, not {tree}.")
        for path, leaf, static in zip(self.paths, leaves, self.statics, strict=True):
            if not (is_data(leaf) if static is None else _same(leaf, static)):
                was = "an array" if static is None else repr(static)
                raise AnotherProgram(
                    f"`{path}` is {leaf!r} and was {was} when the step was planned, which makes it "
                    f"another program. {_AGAIN}"
                )
        pairs = zip(leaves, self.statics, strict=True)
        arrays: tuple[Any, ...] = jax.tree.unflatten(
            tree, [leaf if static is None else None for leaf, static in pairs]
        )
        return arrays

    def with_arrays(self, args: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
        merged: tuple[Any, ...] = _merged(self.tree, self.statics, arrays)
        return merged

    def results(self, args: Sequence[Any], arrays: Any) -> Any:
        return _merged(self.returned.tree, self.returned.known, arrays)

    def pure(self, step: Callable[..., Any], tell: Tell = lambda _: None) -> Callable[..., Any]:
        def pure(*arrays: Any) -> Any:
            leaves, tree = jax.tree.flatten(step(*_merged(self.tree, self.statics, arrays)))
            tell(Returned(tree, tuple(None if is_array(leaf) else leaf for leaf in leaves)))
            return jax.tree.unflatten(tree, [x if is_array(x) else None for x in leaves])

        return pure


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LiveObjects(Calling):
    """Objects that the step changes in place: Flax NNX's habit.

    The planned step takes an `nnx.State` in place of each of them and returns the pair of their
    new states (None for an object that the step leaves as it is) and of the step's own results.
    `live` are their positions among the arguments, `graphdef` is what they are besides arrays.
    Known of a result that is an object: the position of the argument it is, or the `GraphDef` of a
    new one.
    """

    nnx: Any
    live: tuple[int, ...]
    graphdef: Any

    def arrays(self, args: Sequence[Any]) -> tuple[Any, ...]:
        if len(args) <= max(self.live):
            raise AnotherProgram(f"The step got {len(args)} arguments. {_AGAIN}")
        graphdef, states = self._split(args)
        if graphdef != self.graphdef:
            raise AnotherProgram(
                "The NNX objects differ from those that the plan is for, in their structure or in "
                f"what is static in them (`model.train()`, `model.eval()`). {_AGAIN}"
            )
        return self._at(args, states)

    def with_arrays(self, args: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Returns NNX's objects, which get the arrays in place and stay the same objects."""
        self._update(args, [arrays[i] for i in self.live])
        return tuple(args[i] if i in self.live else arrays[i] for i in range(len(args)))

    def results(self, args: Sequence[Any], arrays: Any) -> Any:
        states, own = arrays
        self._update(args, states)
        pairs = zip(self.returned.known, own, strict=True)
        return jax.tree.unflatten(
            self.returned.tree, [self._result(known, part, args) for known, part in pairs]
        )

    def pure(self, step: Callable[..., Any], tell: Tell = lambda _: None) -> Callable[..., Any]:
        def pure(*arrays: Any) -> Any:
            states = [arrays[i] for i in self.live]
            before = [jax.tree.leaves(state) for state in states]  # objects may share the states
            objects = self.nnx.merge(self.graphdef, self._state(states))
            args = self._at(arrays, objects)
            leaves, tree = jax.tree.flatten(step(*args), is_leaf=self._is_object)
            graphdef, after = self._split(args)
            if graphdef != self.graphdef:
                raise CfpError(
                    "The step changes what its NNX objects are made of, not only their arrays: "
                    "make all variables before the step, as `nnx.Optimizer` does."
                )
            known = tuple(self._known(leaf, args) for leaf in leaves)
            tell(Returned(tree, known))
            own = [self._own(leaf, found) for leaf, found in zip(leaves, known, strict=True)]
            pairs = zip(before, after, strict=True)
            return [None if _untouched(old, new) else new for old, new in pairs], own

        return pure

    def output_paths(self, names: Sequence[str], result: Any) -> list[str]:
        states, own = result
        found: list[str] = []
        for i, state in zip(self.live, states, strict=True):
            found += _paths(names[i], state)
        numbered = jax.tree.unflatten(self.returned.tree, range(len(own)))
        keys = jax.tree_util.tree_flatten_with_path(numbered)[0]
        for (key, _), part in zip(keys, own, strict=True):
            found += _paths("result" + path_text(key), part)
        return found

    def _is_object(self, leaf: Any) -> bool:
        return isinstance(leaf, self.nnx.Pytree)

    def _known(self, leaf: Any, args: Sequence[Any]) -> Any:
        if not self._is_object(leaf):
            return None
        same = [i for i in self.live if args[i] is leaf]
        return same[0] if same else self.nnx.graphdef(leaf)

    def _own(self, leaf: Any, known: Any) -> Any:
        if known is None:
            return leaf
        return None if isinstance(known, int) else self.nnx.state(leaf)

    def _result(self, known: Any, part: Any, args: Sequence[Any]) -> Any:
        if known is None:
            return part
        return args[known] if isinstance(known, int) else self.nnx.merge(known, part)

    def _split(self, args: Sequence[Any]) -> tuple[Any, list[Any]]:
        graphdef, state = self.nnx.split(tuple(args[i] for i in self.live))
        return graphdef, [state.get(k, self.nnx.State({})) for k in range(len(self.live))]

    def _state(self, states: Sequence[Any]) -> Any:
        return self.nnx.State({k: state for k, state in enumerate(states) if state is not None})

    def _update(self, args: Sequence[Any], states: Sequence[Any]) -> None:
        self.nnx.update(tuple(args[i] for i in self.live), self._state(states))

    def _at(self, args: Sequence[Any], parts: Sequence[Any]) -> tuple[Any, ...]:
        there = dict(zip(self.live, parts, strict=True))
        return tuple(there.get(i, arg) for i, arg in enumerate(args))


def _merged(tree: Any, statics: Sequence[Any], arrays: Any) -> Any:
    given = iter(jax.tree.leaves(arrays))
    return jax.tree.unflatten(tree, [next(given) if s is None else s for s in statics])


def is_data(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, (bool, int, float, complex))


def _untouched(leaves: Sequence[Any], state: Any) -> bool:
    return all(old is new for old, new in zip(leaves, jax.tree.leaves(state), strict=True))


def _same(leaf: Any, static: Any) -> bool:
    return leaf is static or (type(leaf) is type(static) and bool(leaf == static))


def _paths(name: str, tree: Any) -> list[str]:
    return [name + path_text(key) for key, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def path_text(key: Any) -> str:
    return jax.tree_util.keystr(key)
