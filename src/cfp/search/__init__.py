"""Stage 5 finds the fastest plan within a memory limit, from what was measured.

A plan picks an option o_i for each occurrence i of a segment. The files, in the order of
processing, with the formula that each is about and the function that computes it:

    compose       times, edges, kept and scratch bytes of every option       `compose`
    problem       T = Σ_i times_i[o_i] + Σ_(i,j) edges_ij[o_i, o_j]          `Problem.figures`
                  M = Σ_i kept_i[o_i] + max_i scratch_i[o_i]                 `Problem.memories`
    subproblem    some options of each node; nodes without a choice go       `take`
    prune         options that another replaces whatever the others choose   `prune`
    elimination   state after = group * classes + class; the order of nodes  `build`, `best_order`
    table         T'[group, class, m] = min over options and states          `forward`, `backtrack`
                  least T of all plans with an option                        `marginals`
    price         L_λ = min over choices of T + λ·kept <= T + λ·kept         `at_prices`
    curve         least T by kept: corners of its hull, and buckets          `hull`, `find_curve`
                  kept <= base + unit·Σ shift <= kept + error                `Bucketing.buckets`
    frontier      least T by M: the best curve over all caps on scratch      `find_frontier`
                  least M = min over caps S of S + (least kept under S)      `smallest`
    limit         T >= L_λ(i, o) - λ·K rules options out at a limit          `narrow`
                  the fastest plan with M <= limit, and its slack            `fastest_within`
    solve         one object that answers all of these, each once            `Solver`
    alternatives  the fastest plan without a pair of each plan found before  `alternatives`
"""

from cfp.search.alternatives import alternatives
from cfp.search.frontier import Frontier
from cfp.search.problem import Node, Point, Problem
from cfp.search.solve import Fastest, Solver

__all__ = ["Fastest", "Frontier", "Node", "Point", "Problem", "Solver", "alternatives"]
