"""What a kind is: a distinct segment as programs, and the ways to lay it out.

An `Option` is one way to run a segment: a strategy per block, how its training state lies, and what
it keeps for its backward pass.
Outside loops a segment is one program. In a loop it is one iteration, and what runs once per step
(the update of the stacked parameters): a stacked tensor lies as its slices do, one dim further, and
the slices of a gradient lie as the update wants the stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cfp.blocks import REPLICATED, Strategy
from cfp.layouts import Layout, Layouts, Placed, substitute
from cfp.layouts.state import State, propagate_state
from cfp.segments.extract import Extract
from cfp.segments.keep import Keep, levels, recomputation
from cfp.trace.recomputation import Recomputation


@dataclass(frozen=True, slots=True)
class Option:
    """`combo[i]` is the index of block i's strategy, those with split streams counted after the
    others."""

    combo: tuple[int, ...]
    state: State = State.BLOCK
    keep: Keep = Keep.AS_WRITTEN


@dataclass(frozen=True, slots=True)
class LoopPair:
    """A tensor outside a loop and its counterpart inside, by position; `shift` dims further out."""

    outside: int
    inside: int
    shift: int


@dataclass(frozen=True, slots=True)
class Round:
    """An argument outside a loop, the result of the body that it was after the last iteration, and
    the argument of the body that this result becomes in the next, by position."""

    outside: int
    result: int
    inside: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind occurs: the step's own equation, argument or result for each one of the kind's
    extracts; None where this occurrence has no such equation or makes the argument itself."""

    segment: int
    equations: tuple[tuple[int | None, ...], ...]
    arguments: tuple[tuple[int | None, ...], ...]
    results: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Two neighbours in one program, `both`: the equations of each in it, and its arguments, each
    with its position among those of one alone."""

    both: Extract
    equations: tuple[tuple[int | None, ...], tuple[int | None, ...]]
    arguments: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Kind:
    """A distinct segment.

    `extracts` are its programs, the loop's body first, and `places` where they occur in the step.
    `chain` is two neighbours, where the segment occurs twice in a row outside loops. `slices`
    pair arguments of the second extract to arguments of the first (stacked parameters, and what the
    loop reads whole), `stacks` arguments of the second to results of the first (stacked
    gradients), `rounds` likewise where these go round the loop (sums of gradients). Where there are
    loops in loops, `further` are the slices of the extracts after the second.
    """

    index: int
    name: str
    times: int  # how often it runs in a step
    strategies: tuple[tuple[Strategy, ...], ...]
    streams: tuple[tuple[Strategy, ...], ...]  # of each block, those with split streams
    extracts: tuple[Extract, ...]
    places: tuple[Place, ...]
    chain: Chain | None
    slices: tuple[LoopPair, ...]
    stacks: tuple[LoopPair, ...]
    rounds: tuple[Round, ...]
    further: tuple[tuple[LoopPair, ...], ...] = ()

    @property
    def chained(self) -> Extract | None:
        """Returns the program of two in a row."""
        return None if self.chain is None else self.chain.both

    @property
    def space(self) -> int:
        return math.prod(len(choices) for choices in self.strategies)

    @property
    def first(self) -> Option:
        """Returns the option that takes the first strategy of every block."""
        return Option((0,) * len(self.strategies))

    @property
    def choices(self) -> tuple[tuple[Strategy, ...], ...]:
        """Returns all strategies of every block: `strategies`, then `streams`."""
        pairs = zip(self.strategies, self.streams, strict=True)
        return tuple((*plain, *streams) for plain, streams in pairs)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return self.extracts[0].blocks.mesh_shape

    def chosen(self, option: Option) -> tuple[Strategy, ...]:
        pairs = zip(self.choices, option.combo, strict=True)
        return tuple(choices[choice] for choices, choice in pairs)

    def has_streams(self, option: Option) -> bool:
        """Returns whether an option splits streams: such options are not counted in `space`."""
        sizes = map(len, self.strategies)
        return any(choice >= size for choice, size in zip(option.combo, sizes, strict=True))

    def show(self, option: Option) -> str:
        """Returns `batch, output features`, a name per block; `batch+output features` on two
        axes."""
        words = []
        for block, strategy in zip(
            self.extracts[0].blocks.blocks, self.chosen(option), strict=True
        ):
            names = [REPLICATED if i is None else block.candidates[i].name for i in strategy]
            words.append("+".join(names))
        more = [] if option.state is State.BLOCK else [option.state.value]
        if option.keep is not Keep.AS_WRITTEN:
            more.append(f"keeps {option.keep.value}")
        return ", ".join(words) + (f" ({', '.join(more)})" if more else "")

    def layouts(self, option: Option) -> tuple[Layouts, ...]:
        """Returns the layouts of the tensors of every extract."""
        return self.lay(self.chosen(option), option.state, option.keep)

    @property
    def levels(self) -> dict[Keep, Recomputation]:
        """Returns what there is to choose from besides keeping what the step keeps as written."""
        return levels(self.extracts[0].graph, self.extracts[0].blocks)

    def lay(
        self, chosen: tuple[Strategy, ...], state: State, keep: Keep = Keep.AS_WRITTEN
    ) -> tuple[Layouts, ...]:
        """Returns the same, by the strategies of the blocks. A loop's body computes again what it
        does not keep, and what runs once has nothing to keep."""
        first = self.extracts[0]
        body, *rest = self._lay_all(chosen, state)
        again = recomputation(first.graph, first.blocks, keep)
        return replace(body, again=() if again is None else (again,)), *rest

    def _lay_all(self, chosen: tuple[Strategy, ...], state: State) -> tuple[Layouts, ...]:
        first = self.extracts[0]
        inner = state if len(self.extracts) == 1 else _inside(state)
        body = _lay(first, chosen, inner)
        if len(self.extracts) == 1:
            return (body,)
        held = {
            pair.outside: shift_dims(body.inputs[pair.inside], pair.shift) for pair in self.slices
        }
        outer = State.BLOCK if state is State.FSDP else state
        once = _lay(self.extracts[1], (), outer, held=held)
        wanted = {
            pair.inside: shift_dims(once.inputs[pair.outside], -pair.shift) for pair in self.stacks
        }
        rest = [
            _lay(
                extract,
                (),
                outer,
                held={n.outside: shift_dims(body.inputs[n.inside], n.shift) for n in pairs},
            )
            for extract, pairs in zip(self.extracts[2:], self.further, strict=True)
        ]
        rounds = {pair.result: once.inputs[pair.outside] for pair in self.rounds}
        body = _lay(first, chosen, inner, wanted={**wanted, **rounds})
        kept = {r.result for r in self.rounds if body.inputs[r.inside] == rounds[r.result]}
        if kept != rounds.keys():  # what goes round lies as the body takes it in
            wanted |= {result: rounds[result] for result in kept}
            body = _lay(first, chosen, inner, wanted=wanted)
        return body, once, *rest

    def chained_layouts(self, option: Option) -> Layouts:
        """Returns the layouts of two in a row, each laid out as if it were alone."""
        assert self.chain is not None
        (alone,), both = self.layouts(option), self.chain.both
        arguments = {value: alone.inputs[at] for value, at in self.chain.arguments.items()}
        placed = [Placed(self.extracts[0].graph, alone, some) for some in self.chain.equations]
        return substitute(both.graph, self.mesh_shape, placed, arguments, both.feedback)


def _lay(
    extract: Extract,
    strategies: tuple[Strategy, ...],
    state: State,
    *,
    held: Mapping[int, Layout] | None = None,
    wanted: Mapping[int, Layout] | None = None,
) -> Layouts:
    return propagate_state(
        extract.graph,
        extract.blocks,
        strategies,
        state,
        held=held,
        feedback=extract.feedback,
        wanted=wanted,
    )


def _inside(state: State) -> State:
    """Returns the state in a loop's body: its slices of parameters are split where the stacks
    are."""
    return State.FSDP if state is State.FSDP else State.BLOCK


def shift_dims(layout: Layout, shift: int) -> Layout:
    """Returns the layout of the tensor with `shift` more dims in front; a split of those is given
    up."""
    return tuple(None if dim is None or dim + shift < 0 else dim + shift for dim in layout)
