"""Dynamic programming along the steps.

    T[state, m] = least cost of the nodes visited, m the buckets of memory that they use

    R[column, group, m] = min over the states of the group of T[state, m] + edge[column, state]
    T'[group, class, m] = min over the options of the class of R[column, group, m - shift] + cost

`forward` computes R of every step (`_arrive`, `_leave`), `backtrack` reads choices off it, and
`marginals` tells what it costs at least to insist on an option. Without shifts the last axis is one
of lanes: as many problems, which differ in the costs of their options, solved side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cfp.search.elimination import Step, Steps
from cfp.search.problem import Array, Numbers

BLOCK = 1 << 15  # numbers at a time, 256 kB: they stay in the cache of a core
GATHERED = 1 << 21  # numbers gathered at once to read choices off: 16 MB


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    steps: Steps
    costs: Sequence[Array]  # of each node, by option and lane
    shifts: Sequence[Numbers] | None  # of each node, by option, in buckets
    width: int
    arrivals: tuple[Array, ...]  # R of each step
    last: Array  # by bucket or lane; infinite where nothing is possible

    def before(self, number: int) -> Array:
        """Returns T before a step; it is not stored, since R is the smaller of the two."""
        if number == 0:
            return np.zeros((1, 1 if self.shifts else self.width))
        node = self.steps.order[number - 1]
        shift = self.shifts[node] if self.shifts else None
        step = self.steps.at(number - 1)
        return _leave(step, self.arrivals[number - 1], self.costs[node], shift, self.width)


def forward(
    steps: Steps,
    costs: Sequence[Array],
    shifts: Sequence[Numbers] | None = None,
    width: int = 1,
) -> Tables:
    """Returns the tables of the forward sweep, with `width` buckets at most, or that many lanes."""
    table = np.zeros((1, 1 if shifts else width))
    arrivals = []
    for node, step in zip(steps.order, steps.steps, strict=True):
        arrivals.append(_arrive(step, table))
        shift = shifts[node] if shifts else None
        table = _leave(step, arrivals[-1], costs[node], shift, width)
    return Tables(steps, costs, shifts, width, tuple(arrivals), table[0])


def _arrive(step: Step, table: Array) -> Array:
    if not step.in_order:
        table = table[step.members]
    states, width = table.shape
    found = np.empty((step.columns, step.groups, width))
    wide = max(64, BLOCK // states)
    for low in range(0, width, wide):
        sub = table[:, low : low + wide]
        some = max(1, BLOCK // sub.size)
        space = np.empty((min(some, step.columns), *sub.shape))
        for first in range(0, step.columns, some):
            edge_s = step.edge_s[first : first + some, :, None]
            paths = np.add(sub, edge_s, out=space[: len(edge_s)])
            _least(step, paths, found[first : first + some, :, low : low + wide])
    return found


def _least(step: Step, paths: Array, into: Array) -> None:
    """Takes the least over the states of each group. (`np.minimum.reduceat` takes ten times as
    long.)"""
    columns, states, width = paths.shape
    if states == step.groups:
        into[...] = paths
    elif states == step.groups * step.largest:
        paths.reshape(columns, step.groups, -1, width).min(axis=2, out=into)
    else:
        ends = [*step.starts[1:].tolist(), states]
        for group, (start, end) in enumerate(zip(step.starts.tolist(), ends, strict=True)):
            paths[:, start:end].min(axis=1, out=into[:, group])


def _leave(step: Step, arrivals: Array, cost: Array, shift: Numbers | None, width: int) -> Array:
    """Returns T after a step."""
    before = arrivals.shape[2]
    if shift is None:
        order, starts = step.by_left
        paths = arrivals[step.seen.of[order]] + cost[order, None, :]
        found: Array = np.minimum.reduceat(paths, starts, axis=0)
        return found.transpose(1, 0, 2).reshape(-1, before)
    width = min(before + int(shift.max()), width)
    after = np.full((step.groups, step.left.count, width), np.inf)
    for option in range(len(shift)):
        low = int(shift[option])
        high = min(low + before, width)
        if low < high:
            into = after[:, step.left.of[option], low:high]
            paths = arrivals[step.seen.of[option], :, : high - low] + cost[option, 0]
            np.minimum(into, paths, out=into)
    return after.reshape(-1, width)


def backtrack(tables: Tables, at: Numbers) -> Numbers:
    """Returns the choices behind these buckets (or lanes) of `last`, a row each; of equals the
    first."""
    choices = np.empty((len(at), len(tables.steps.order)), dtype=np.int64)
    at = at.copy()
    state = np.zeros_like(at)
    for number in range(len(tables.steps.order) - 1, -1, -1):
        step, node = tables.steps.at(number), tables.steps.order[number]
        before = tables.before(number)
        some = max(1, GATHERED // (len(step.left.of) + step.largest))
        for start in range(0, len(at), some):
            rows = slice(start, start + some)
            group, left = np.divmod(state[rows], step.left.count)
            option = _option(tables, number, group, left, at[rows])
            choices[rows, node] = option
            if tables.shifts:
                at[rows] -= tables.shifts[node][option]
            state[rows] = _state(step, before, group, step.seen.of[option], at[rows])
    return choices


def _option(tables: Tables, number: int, group: Numbers, left: Numbers, at: Numbers) -> Numbers:
    """Returns the option by which each group and bucket is left towards its class."""
    step, arrivals = tables.steps.at(number), tables.arrivals[number]
    node = tables.steps.order[number]
    cost = tables.costs[node]
    columns = step.seen.of[None, :]
    can = step.left.of[None, :] == left[:, None]
    if tables.shifts:
        from_ = at[:, None] - tables.shifts[node][None, :]
        can &= (from_ >= 0) & (from_ < arrivals.shape[2])
        paths = arrivals[columns, group[:, None], np.where(can, from_, 0)] + cost[:, 0]
    else:
        paths = arrivals[columns, group[:, None], at[:, None]] + cost[:, at].T
    chosen: Numbers = np.where(can, paths, np.inf).argmin(axis=1)
    return chosen


def _state(step: Step, before: Array, group: Numbers, column: Numbers, at: Numbers) -> Numbers:
    """Returns the state from which each group is reached."""
    ends = np.append(step.starts[1:], len(step.members))
    position = step.starts[group][:, None] + np.arange(step.largest)
    position = np.minimum(position, ends[group][:, None] - 1)
    paths = before[step.members[position], at[:, None]] + step.edge_s[column[:, None], position]
    chosen = position[np.arange(len(group)), paths.argmin(axis=1)]
    states: Numbers = step.members[chosen]
    return states


def marginals(tables: Tables) -> list[Array]:
    """Returns for each node, by option and lane, the least cost of all choices that have the
    option."""
    found = [np.empty(0)] * len(tables.steps.order)
    rest = np.zeros((1, tables.width))  # least cost of the nodes to come, by state
    for number in range(len(tables.steps.order) - 1, -1, -1):
        step, node = tables.steps.at(number), tables.steps.order[number]
        ahead = rest.reshape(step.groups, step.left.count, -1)[:, step.left.of]
        ahead = ahead.transpose(1, 0, 2) + tables.costs[node][:, None, :]
        found[node] = (tables.arrivals[number][step.seen.of] + ahead).min(axis=1)
        order, starts = step.by_seen
        rest = _return(step, np.minimum.reduceat(ahead[order], starts, axis=0))
    return found


def _return(step: Step, ahead: Array) -> Array:
    """Carries the least cost ahead from one by column and group to one by state before the step."""
    states = len(step.members)
    sizes = np.diff(step.starts, append=states)
    ahead = np.repeat(ahead, sizes, axis=1)
    ordered = np.full((states, ahead.shape[2]), np.inf)
    some = max(1, BLOCK // ordered.size)
    for first in range(0, step.columns, some):
        paths = ahead[first : first + some] + step.edge_s[first : first + some, :, None]
        np.minimum(ordered, paths.min(axis=0), out=ordered)
    found = np.empty_like(ordered)
    found[step.members] = ordered
    return found
