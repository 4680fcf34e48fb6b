"""Alpa's intra-operator plan (OSDI'22, section 4), as a pure function of a traced step.

    problem   nodes with ways: `build`, `ways`, `carry`, `depth`, `batch`, `points`, `ledger`
    cost      of communications, in Alpa's symbols (`cost`), of an assignment (`problem`)
    answer    exact elimination (`eliminate`), then an integer program (`ilp`)
    option    gradients scattered instead of all-reduced (`scatter`)

    all-gather       alpha + beta (n-1)/n b + 0.1
    all-reduce       alpha + beta 2 (n-1)/n b + 0.01
    reduce-scatter   alpha + beta (n-1)/n b + 0.001
    all-to-all       alpha + beta (n-1)/n/n b (n/2) + 0.001

with alpha = beta = 1 unless told, the part before the tie-breaker rounded: symbols, not
measurements. They and the ways are from alpa-projects/tensorflow-alpa, xla/service/spmd
(auto_sharding.cc, auto_sharding_strategy.h, auto_sharding_dot_handler.cc, auto_sharding_util.cc)
and alpa/shard_parallel/auto_sharding.py. Where this differs from them:

- The IR is JAX's, not XLA's: dots have all their dims, scans are loops whose bodies count as often
  as they run. Only splits that divide are offered; Alpa pads.
- A lookup has the splits of the one-hot dot that Alpa patches flax's into.
- What a reshape or slice cannot carry is gathered at a price; Alpa forbids it.
- Counters and random numbers are replicated for nothing; Alpa gives them a choice.
- Where Alpa's rules leave no assignment (it then stops, or takes one that costs 1e13), the
  forbidden is made very dear and the solution says `relented`.
- Two all-reduced dots that are added share one all-reduce also through transposes.
- There is no memory limit, and no aggressive (ZeRO-3) rewriting.
"""

from cfp.templates.alpa_ilp.estimate import estimate_alpa
from cfp.templates.alpa_ilp.options import AlpaOptions
from cfp.templates.alpa_ilp.solution import AlpaSolution, Communication
from cfp.templates.alpa_ilp.solve import solve_alpa

__all__ = ["AlpaOptions", "AlpaSolution", "Communication", "estimate_alpa", "solve_alpa"]
