"""One call of a jitted step: which arguments are data, and which belong to the program.

Keyword arguments go to their positions where they have one. Static arguments, and keyword-only
ones, are filled in by a function of the data alone, which is what is traced and planned.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from cfp.errors import CfpError
from cfp.trace.calling import LiveObjects, StaticLeaves
from cfp.trace.find_calling import calling_of
from cfp.trace.paths import argument_names

Names = str | Sequence[str] | None
Numbers = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step: its data by name, in order. `places` are its positional and `keywords`
    its other arguments, by name, with the values of those that are static."""

    names: tuple[str, ...]
    data: tuple[Any, ...]
    places: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]

    @property
    def program(self) -> tuple[Any, ...]:
        """Returns what makes this call another program than others, besides its data's shapes."""
        return self.names, self.places, self.keywords

    @property
    def plain(self) -> bool:
        """Returns whether the step is a function of the data as it is."""
        return not self.keywords and len(self.places) == len(self.names)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a step is called: by name, the parameters that are part of the program and those whose
    memory may be used up. `donated` is None where the step itself says so."""

    step: Callable[..., Any]
    signature: inspect.Signature | None
    statics: frozenset[str]
    donated: frozenset[str] | None

    @staticmethod
    def of(
        step: Callable[..., Any], donated: Numbers, numbers: Numbers, names: Names
    ) -> Arrangement:
        """Returns the arrangement of a step whose parameters are named by number or by name."""
        try:
            signature: inspect.Signature | None = inspect.signature(step)
        except (TypeError, ValueError):  # builtins and some C callables have no signature
            signature = None
        statics = {_parameter(step, signature, number) for number in _several(numbers)}
        for name in _several(names):
            if signature is None or name not in signature.parameters:
                raise CfpError(
                    f"`static_argnames` has `{name}`, which the step does not take: check the "
                    "spelling."
                )
            statics.add(name)
        used_up = {_parameter(step, signature, number) for number in _several(donated)}
        both = sorted(used_up & statics)
        if both:
            raise CfpError(f"`{both[0]}` is static and cannot be donated: leave one out.")
        return Arrangement(
            step, signature, frozenset(statics), None if donated is None else frozenset(used_up)
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Returns one call, with its data told apart from what belongs to the program."""
        if kwargs or self.statics:
            if self.signature is None:
                raise CfpError("The step has no signature: call it with positional arguments.")
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise CfpError(f"The step cannot be called like this: {error}.") from None
            args, kwargs = bound.args, bound.kwargs
        given = dict(zip(argument_names(self.step, len(args)), args, strict=True)) | kwargs
        data = {name: value for name, value in given.items() if name not in self.statics}
        static = {name: self._static(name, given[name]) for name in given if name not in data}
        placed = list(given)[: len(args)]
        return Call(
            tuple(data),
            tuple(data.values()),
            tuple((name, static.get(name)) for name in placed),
            tuple((name, static.get(name)) for name in sorted(kwargs)),
        )

    def program(self, call: Call) -> Callable[..., Any]:
        """Returns the step as a function of the data of a call, donating what it was told to."""
        step = self.step if call.plain else _specialised(self.step, call)
        if self.donated is None:
            return step
        numbers = tuple(i for i, name in enumerate(call.names) if name in self.donated)
        return _donating(step, call, numbers)

    def _static(self, name: str, value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            raise CfpError(
                f"`{name}` is static and is a {type(value).__name__}, which has no hash: pass a "
                "tuple in place of a list, or let the argument be data."
            ) from None
        return value


def _specialised(step: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """Returns the step as a function of its data alone; static arguments are filled in."""

    def specialised(*data: Any) -> Any:
        values = dict(zip(call.names, data, strict=True))
        args = [values.get(name, static) for name, static in call.places]
        return step(*args, **{name: values.get(name, static) for name, static in call.keywords})

    functools.update_wrapper(specialised, step)
    named = [name if name.isidentifier() else f"args_{i}" for i, name in enumerate(call.names)]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in named]
    specialised.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return specialised


def _donating(step: Callable[..., Any], call: Call, numbers: tuple[int, ...]) -> Callable[..., Any]:
    """Returns the step jitted by its own library, which records what may be used up."""
    calling = calling_of(step, call.names, call.data)
    if isinstance(calling, StaticLeaves):
        raise CfpError(
            "`donate_argnums` is for steps whose arguments are arrays: give Equinox's own, as "
            'cfp.jit(eqx.filter_jit(step, donate="all"), mesh=mesh).'
        )
    jitted: Any = calling.nnx.jit if isinstance(calling, LiveObjects) else jax.jit
    donating: Callable[..., Any] = jitted(step, donate_argnums=numbers)
    return donating


def _parameter(step: Callable[..., Any], signature: inspect.Signature | None, number: int) -> str:
    """Returns the name of the parameter at a position, counted from the end where negative."""
    count = 0 if signature is None else len(signature.parameters)
    number = number + count if number < 0 else number
    return argument_names(step, number + 1)[number]


def _several(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, (int, str)) else tuple(given)
