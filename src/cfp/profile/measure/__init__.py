"""This room measures programs, and says what their measurements mean.

The files, in the order of processing:

    rows          the rows of the store's file
    store         every measurement ever made, in one file
    lock          one planner measures on a machine at a time
    network       which network lies between the processes of a mesh
    budget        the time that planning may take, and every deadline
    campaign      looks programs up, has what is missing compiled and run, and copes with losses
    compiling     the programs in the worker: given to it, compiled, held and dropped
    running       runs what is compiled, and writes down what it took
    findings      what is known of programs, and how fast the machine usually was
    blame         whose doing it was that a worker ended
    rounds        compiled programs run in turn, round by round
    measurement   what was measured of one program
    confidence    how sure a median is, and which of two programs is faster
    progress      what measuring tells whoever watches, and how long it will still take
    memory        the memory model: what a segment holds, and what for (`profile.peak`: the step)
    sent          what a program sends, by the user's source line
    costs         from measurements of programs to the cost of a segment
    ledger        what was asked for, option by option, and what it came to
    full_step     whole steps under a plan, measured like any program
"""
