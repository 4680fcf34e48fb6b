"""Memory at a price: bounds on time from below, and plans.

With a price λ in seconds per byte, L_λ is the least T + λ·kept of all choices. For every λ >= 0

    T(choice) >= L_λ - λ·kept(choice)

so L_λ bounds the time of all that keeps a given amount, and what is kept by all that is as fast as
a given time. The choice that attains it lies on the frontier. Many prices are tried side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cfp.search.elimination import Steps
from cfp.search.problem import Array, Numbers, Problem
from cfp.search.table import Tables, backtrack, forward

FACTORS = 4.0 ** np.arange(-8, 9)  # of the mean seconds per byte: from next to nothing to all
LANES = 9  # prices between two, and
ZOOMS = 4  # times that they close in by 4: near the best price the bound hardly changes


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """The cheapest choices at some prices of memory. What is kept counts from the least that the
    nodes can keep."""

    prices: Array
    tables: Tables
    choices: Numbers  # for each price
    over_bytes: Numbers  # what each keeps
    times_s: Array  # what each takes, to rounding

    @property
    def least(self) -> Array:
        """Returns L_λ."""
        return self.tables.last


def at_prices(problem: Problem, steps: Steps, prices: Array) -> Priced:
    over = [node.kept_bytes - node.kept_bytes.min() for node in problem.nodes]
    tables = forward(steps, _costs(problem, prices), width=len(prices))
    choices = backtrack(tables, np.arange(len(prices)))
    kept = np.sum([extra[c] for extra, c in zip(over, choices.T, strict=True)], axis=0)
    return Priced(prices, tables, choices, kept, tables.last - prices * kept)


def wide_apart(problem: Problem) -> Array:
    """Returns prices from none to one at which little else counts."""
    of_nodes = {number: _span(node.times_s) for number, node in problem.distinct_nodes.items()}
    of_edges = {number: _span(edge) for number, edge in problem.distinct_edges.items()}
    seconds = sum(of_nodes[number] for number in problem.node_numbers)
    seconds += sum(of_edges[number] for number in problem.edge_numbers.values())
    kept = sum(float(np.ptp(node.kept_bytes)) for node in problem.nodes)
    return np.append(0.0, FACTORS * (seconds / kept if seconds and kept else 1.0))


def best_price(problem: Problem, steps: Steps, room_bytes: int) -> float:
    """Returns the price that bounds best the time of what keeps no more than the room."""
    prices = wide_apart(problem)
    for _ in range(ZOOMS):
        bounds = forward(steps, _costs(problem, prices), width=len(prices)).last
        best = int((bounds - prices * room_bytes).argmax())
        around = prices[max(0, best - 1)], prices[min(best + 1, len(prices) - 1)]
        prices = np.linspace(*around, LANES)
    return float(prices[LANES // 2])


def even(priced: Priced, a: int, b: int) -> float:
    """Returns the price at which the choices numbered a and b, of which b keeps less, cost the
    same: a corner that lies between them is cheaper there."""
    seconds = max(0.0, float(priced.times_s[b] - priced.times_s[a]))
    return seconds / max(1, int(priced.over_bytes[a] - priced.over_bytes[b]))


def _costs(problem: Problem, prices: Array) -> list[Array]:
    return [
        node.times_s[:, None] + (node.kept_bytes - node.kept_bytes.min())[:, None] * prices
        for node in problem.nodes
    ]


def _span(table: Array) -> float:
    finite = table[np.isfinite(table)]
    return float(np.ptp(finite)) if finite.size else 0.0
