"""Training throughput on clusters whose network matters: the paper's main figure.

Every model at every batch size on every cluster and mesh is planned by CFP on that cluster
(`bench.cluster`: real processes, real bytes over TCP, shaped by the kernel). Then its plan runs in
turn with data parallel, Megatron, ZeRO-1, FSDP and Alpa, on 16 rounds that had no part in choosing
it. Whether it is faster, slower, ties, or is not told apart is judged as everywhere
(`cfp.profile.measure.confidence`): a tie is what an equivalence test shows.

`python -m bench.throughput --sample` makes 8 cells in about 35 minutes on two cores and writes
bench/results/throughput_sample.md, .json and .png. It goes on where it was stopped.

`python -m bench.throughput` makes all 144, which takes many hours, and writes throughput.md;
`--models`, `--batches`, `--clusters` and `--meshes` take a part. What cells came to is kept in
throughput.json and shown with the rest. A cell that is there is not made again, unless its entry is
taken out: those that are there now are of an older rule, and are marked so
(`bench.clustered.CHOSEN_BY`).

Both need root, and fail where a target is missed.

    rows     the cells that were made, kept in a file, and how many times as fast CFP is in them
    targets  what must be true of them
    table    the text
    picture  the plot
"""
