"""Plans for GPUs that are not there, from one that is: `python -m bench.gpu`.

It needs one NVIDIA GPU. A case is a model, a mesh and its links; what came of it is a file of its
own under `results/gpu`, so that a run that was stopped goes on where it was. `table` makes the page
of those that are there.
"""
