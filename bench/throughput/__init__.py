"""Training throughput on clusters whose network matters: the paper's main figure.

Every model at every batch size on every cluster and mesh is planned by CFP on that cluster
(`bench.cluster`: real processes, real bytes over TCP, shaped by the kernel). Data parallel,
Megatron, ZeRO-1, FSDP and Alpa run beside it, in turn, in one run. A plan ties with the best where
1 is in the 95 % interval of the ratio of their times, round by round.

`python -m bench.throughput` writes bench/results/throughput.md and .png, and fails where a target
is missed. It needs root. All of it takes many hours on two cores; `--models`, `--batches`,
`--clusters` and `--meshes` take a part. What cells came to is kept in throughput.json and shown
with the rest. A cell that is there is not made again, unless its entry is taken out.

    rows     the cells that were made, kept in a file, and how many times as fast CFP is in them
    targets  what must be true of them
    table    the text
    picture  the plot
"""
