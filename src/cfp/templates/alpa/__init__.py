"""Alpa's intra-operator plan (OSDI'22, section 4), as a pure function of a traced step.

    problem = nodes with ways (`build`, `ways`, `carry`, `depth`, `batch`) and costs (`cost`)
    answer  = exact elimination (`eliminate`), then an integer program (`ilp`)

Costs are Alpa's symbols, not measurements. The formulas are in `cost`, the ways an operation may
be computed in `ways`, what follows what in `depth` and `carry`, the options in `options`.
"""

from cfp.templates.alpa.options import AlpaOptions
from cfp.templates.alpa.solution import AlpaSolution, Communication
from cfp.templates.alpa.solve import solve_alpa

__all__ = ["AlpaOptions", "AlpaSolution", "Communication", "solve_alpa"]
