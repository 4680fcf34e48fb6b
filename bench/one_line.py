"""`cfp.jit` beside what else takes one line or a few: a transformer in Flax NNX, trained four ways.

    cfp.jit          the step as it is, and a mesh of 4
    google-parallax  `create_sharded_model` with `AUTO`, on the mesh of 2x2 that it needs; the batch
                     is split along its data axis
    FSDP by hand     every parameter and its optimizer state split along its largest dim that
                     divides by 4, held there after each update; the batch split
    one device       the step under `nnx.jit`, on one device

All four train copies of one model on the same tokens. Every round runs a step of each, and a step
takes as long as its slowest process. Ratios are taken round by round (`judge`), and losses must
agree before anything is timed.

`python -m bench.one_line` writes bench/results/one_line.md: on 4 virtual devices, and on a test
cluster, which needs root. It needs the extra `parallax`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import cfp
from bench.cluster.run import run
from bench.cluster.spec import read_spec
from bench.environment import made_by
from cfp.cluster.launch import VARIABLES
from cfp.profile.measure.confidence import judge, median_interval

OUT = Path(__file__).parent / "results" / "one_line.md"
DEVICES = 4
VIRTUAL, CLUSTER = "4 virtual devices", "slow_200mbit"
BUDGET = "120s"
WARMUPS, ROUNDS = 2, 24
VOCAB, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 512, 32, 128, 8, 2, 8
OURS = "cfp.jit"
CLOSE = 1e-2  # by which losses may differ after the warm-up: summation in another order


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=HEADS, in_features=WIDTH, decode=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def make_model() -> Decoder:
    return Decoder(nnx.Rngs(0))


def make_optimizer(model: Decoder) -> Any:
    return nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model: Any, optimizer: Any, tokens: Any) -> Any:
    def loss_of(model: Any) -> Any:
        logits, labels = model(tokens)[:, :-1], tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


Trained = Callable[[], Any]  # trains one step and returns the loss


def by_cfp(tokens: Any, store: Path) -> Trained:
    mesh = jax.make_mesh((DEVICES,), ("x",))
    train = cfp.jit(train_step, mesh=mesh, budget=BUDGET, cache_dir=store)
    model = make_model()
    optimizer = make_optimizer(model)
    return lambda: train(model, optimizer, tokens)


def by_parallax(tokens: Any, _: Path) -> Trained:
    import parallax  # type: ignore[import-not-found, import-untyped, unused-ignore]

    mesh = jax.make_mesh((2, DEVICES // 2), ("data", "model"), (AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = parallax.create_sharded_model(make_model, (tokens,))
        optimizer = make_optimizer(model)
    split = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))

    def train() -> Any:
        with jax.set_mesh(mesh):
            return train_step(model, optimizer, split)

    return train


def by_hand(tokens: Any, _: Path) -> Trained:
    mesh = jax.make_mesh((DEVICES,), ("x",), (AxisType.Auto,))

    def sharding(leaf: Any) -> NamedSharding:
        dims = [dim for dim, size in enumerate(leaf.shape) if size % DEVICES == 0]
        if not dims:
            return NamedSharding(mesh, PartitionSpec())
        dim = max(dims, key=lambda dim: leaf.shape[dim])
        return NamedSharding(mesh, PartitionSpec(*[None] * dim, "x"))

    model = make_model()
    optimizer = make_optimizer(model)
    state = nnx.state((model, optimizer))
    shardings = jax.tree.map(sharding, state)
    nnx.update((model, optimizer), jax.device_put(state, shardings))
    split = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("x")))

    @nnx.jit
    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        loss = train_step(model, optimizer, tokens)
        held = jax.lax.with_sharding_constraint(nnx.state((model, optimizer)), shardings)
        nnx.update((model, optimizer), held)
        return loss

    return lambda: step(model, optimizer, split)


def on_one_device(tokens: Any, _: Path) -> Trained:
    model = make_model()
    optimizer = make_optimizer(model)
    return lambda: train_step(model, optimizer, tokens)


CONTENDERS: dict[str, Callable[[Any, Path], Trained]] = {
    OURS: by_cfp,
    "google-parallax AUTO": by_parallax,
    "FSDP by hand": by_hand,
    "one device": on_one_device,
}


def measure(file: Path, store: Path) -> None:
    """Runs all contenders in turn; process 0 writes the seconds of every round."""
    count = join()
    tokens = np.random.default_rng(0).integers(0, VOCAB, (BATCH, LENGTH), np.int32)
    trained = {name: make(tokens, store) for name, make in CONTENDERS.items()}
    losses = {name: [float(train()) for _ in range(WARMUPS)][-1] for name, train in trained.items()}
    if max(losses.values()) - min(losses.values()) > CLOSE:
        raise SystemExit(f"The losses differ: {losses}")
    runs: dict[str, list[float]] = {name: [] for name in trained}
    for number in range(ROUNDS):
        for name, train in trained.items():
            if count > 1:
                multihost_utils.sync_global_devices(f"{number} {name}")
            start = time.perf_counter()
            if not (name == "one device" and jax.process_index()):
                jax.block_until_ready(train())
            runs[name].append(time.perf_counter() - start)
    slowest = np.asarray([runs[name] for name in trained])
    if count > 1:
        slowest = multihost_utils.process_allgather(slowest).max(axis=0)
    if jax.process_index() == 0:
        file.write_text(
            json.dumps(dict(zip(trained, [list(map(float, row)) for row in slowest], strict=True)))
        )


def join() -> int:
    """Makes this process one of those it was started with, and returns how many there are."""
    if VARIABLES[0] not in os.environ:
        jax.config.update("jax_num_cpu_devices", DEVICES)
        return 1
    address, count, index = (os.environ[name] for name in VARIABLES)
    jax.config.update("jax_num_cpu_devices", DEVICES // int(count))
    jax.distributed.initialize(address, int(count), int(index))
    return int(count)


def table(where: str, runs: dict[str, list[float]]) -> str:
    lines = [
        f"## {where[0].upper()}{where[1:]}",
        "",
        "| | step ms | interval | times as long as `cfp.jit` | |",
        "|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        low, high = median_interval(found)
        judged = judge(found, runs[OURS])
        ratio = "" if name == OURS else f"{judged.ratio:.2f}"
        lines.append(
            f"| {name} | {statistics.median(found) * 1e3:.1f} | "
            f"{low * 1e3:.1f} to {high * 1e3:.1f} | {ratio} | "
            f"{'' if name == OURS else judged.verdict.value} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path(".bench_store") / "one_line")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options.inside, options.store)
        return
    store = options.store.absolute()
    store.mkdir(parents=True, exist_ok=True)
    parts = []
    for where in (VIRTUAL, CLUSTER):
        file = store / f"{where.replace(' ', '_')}.json"
        words = ["--store", str(store), "--inside", str(file)]
        command = [sys.executable, "-m", "bench.one_line", *words]
        if not file.exists():
            if where == VIRTUAL:
                subprocess.run(command, check=True)
            elif run(read_spec(where), command):
                raise SystemExit(f"{where}: see above why it failed.")
        told = where if where == VIRTUAL else f"`{where}`: {read_spec(where).description}"
        parts.append(table(told, json.loads(file.read_text())))
    options.out.write_text(
        "# `cfp.jit` beside google-parallax, FSDP by hand and one device\n\n"
        f"{made_by('bench.one_line')}\n\n"
        f"A decoder in Flax NNX: {LAYERS} layers, width {WIDTH}, {HEADS} heads, sequences of "
        f"{LENGTH}, vocabulary {VOCAB}, batch {BATCH}, AdamW, float32. `cfp.jit` planned with a "
        f"budget of {BUDGET}. {ROUNDS} rounds, each with a step of each.\n\n"
        + "\n\n".join(parts)
        + "\n"
    )
    print(options.out.read_text())


if __name__ == "__main__":
    main()
