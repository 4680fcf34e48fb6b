"""This room says what to measure: the programs of a step's distinct segments, and their names in
the store.

The files, in the order of processing:

    machine     what a measurement depends on besides the program: devices, compiler, settings
    kinds       a distinct segment as programs, and the options to lay it out
    find_kinds  the kinds of a step, and where each occurs
    lower       a program with its layouts, as bytes that any process can compile and run
    key         what a program is, by content
    requests    the programs as they are asked for: segments, two in a row, reshardings, nothing
    boundary    the tensors that cross from one segment to another, and where they are resharded
"""
