"""Theorem 1 of the paper, probed exactly.

The theorem: giving a whole ParallelBlock one split does not exclude the best plan. Here, on the
forward graph of a step and one mesh axis of P devices, two spaces of plans are compared:

    operators   every equation picks its own way to be computed (`ways`)
    blocks      every block picks one candidate, its members follow; the rest picks freely

Both are priced in bytes that a device sends. With n the bytes of the whole tensor:

    split i  -> split j      n (P-1) / P^2     all-to-all
    split    -> whole        n (P-1) / P       all-gather
    whole    -> split        0                 a slice
    partial  -> whole        2 n (P-1) / P     all-reduce
    partial  -> split        n (P-1) / P       reduce-scatter

A value is produced in one sharding. What its readers want in others is paid once per distinct
sharding wanted, and once it has been gathered every slice of it is free. Partial sums are
completed where they arise. Arguments are held whole and cost nothing, unless `weights` asks that
a parameter held whole pays for the all-reduce of its gradient, 2 n (P-1) / P (held split it pays
nothing, and moving it costs twice: its gradient takes the same way back). Without `weights` plain
data parallelism is nearly free on any model. A contraction must be split where it can be (else
all would be whole and free); any other equation may be computed whole.

All prices are multiples of (P-1) / P^2 bytes: they are counted in those units, as integers, so
that two optima are compared exactly.

    ways     one equation: the ways to compute it, from its map
    problem  the graph as nodes with ways and values with readers; its price, term by term
    spaces   from a Graph and its Blocks to the problem of either space
    solve    the optimum: an integer program (HiGHS), and plain enumeration to check it
    graphs   small random programs
    probe    the gap of one step
"""
