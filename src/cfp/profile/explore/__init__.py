"""This room decides which options of a segment to measure, in which order, and when to stop.

The files, in the order of processing:

    scope       what the caller wants measured of a step
    factors     what varies among the options of a segment: a split per block and mesh axis
    combos      combinations of strategies as rows of arrays
    counts      what every option sends and computes, counted without running it
    covering    the combinations to measure first
    effects     what combinations have in common
    regress     what unmeasured combinations should take
    space       the combinations, listed or searched
    explorer    the next combinations to measure, and whether it is enough
    exploration the explorers of all segments, side by side
    streams     of which options split streams are measured
    states      of which options training state is measured split further
    keeps       what keeps clearly less for the backward pass, and the options of leading plans
    expected    what unmeasured options should need and take that save memory
    neighbours  what options cost beside one another: reshardings, and two in a row
    forecast    how many programs the stages ahead will measure
"""
