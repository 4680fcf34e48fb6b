"""Stage 5: the fastest plan within a memory limit, from what was measured."""

from cfp.search.alternatives import alternatives
from cfp.search.problem import Node, Problem
from cfp.search.solution import Point, Solution
from cfp.search.solve import solve

__all__ = ["Node", "Point", "Problem", "Solution", "alternatives", "solve"]
