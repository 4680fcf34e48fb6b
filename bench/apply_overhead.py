"""What `plan.jit(step)` costs over shardings written by hand: nothing, at run time.

GPT's training step is compiled twice for the same plan: by `plan.jit(step)`, and by plain `jax.jit`
of the unmodified step with the PartitionSpecs below, which owe nothing to CFP. The two programs
must have the same collectives, and are then timed in turns:

    collectives   number and bytes by kind, as read from the compiled text; and whether the programs
                  are the same in whole: instruction for instruction, names aside
    ratio         median over rounds of (time of one / time of the other in the same round), with a
                  95 % percentile bootstrap over rounds. The hand-written step takes two turns, each
                  with a state of its own: how far they lie apart is the noise
    per call      what calling a `PlannedStep` adds to calling a `jax.jit`, on a trivial step

`python -m bench.apply_overhead` writes bench/results/apply_overhead.md and exits with 1 where the
collectives differ. For times worth keeping run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cfp import templates
from cfp.links.collectives import HloCollective, parse_collectives
from cfp.models import config, make_step

OUT = Path(__file__).parent / "results" / "apply_overhead.md"
AXIS = "x"
TIE = 0.02  # a ratio nearer to 1 than this is no difference, whatever its interval
NAMES = ("data_parallel", "megatron")

BATCH = {"tokens": P(AXIS), "labels": P(AXIS)}
WEIGHTS = {
    "tokens": P(AXIS, None),  # the vocabulary: rows of the table, columns of the head
    "head": P(None, AXIS),
    "qkv": P(None, AXIS),  # columns, which are heads or features of the MLP; biases alike
    "qkv_bias": P(AXIS),
    "up": P(None, AXIS),
    "up_bias": P(AXIS),
    "out": P(AXIS, None),  # rows; the biases, added to the sum, are whole
    "down": P(AXIS, None),
}


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """What the compiler made of a step, for one device."""

    collectives: tuple[HloCollective, ...]
    flops: float
    memory_bytes: int
    instructions: Counter[str]

    @property
    def sizes(self) -> Counter[tuple[str, int]]:
        """Returns how often each (kind, bytes) runs."""
        sizes: Counter[tuple[str, int]] = Counter()
        for found in self.collectives:
            sizes[found.kind, found.bytes] += found.times
        return sizes

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Returns for each kind how many collectives run, and the bytes of all."""
        total: dict[str, tuple[int, int]] = {}
        for (kind, size), count in sorted(self.sizes.items()):
            number, moved = total.get(kind, (0, 0))
            total[kind] = (number + count, moved + count * size)
        return total

    def show(self) -> str:
        """Returns every collective with what it moves and where it comes from."""
        return "\n".join(
            f"{found.kind} x{found.times} {found.bytes} bytes\n"
            + "\n".join(f"  {p.dtype}{list(p.shape)} {p.op_name}" for p in found.pieces)
            for found in self.collectives
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    value: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        return self.low <= 1 <= self.high or abs(self.value - 1) < TIE

    def show(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One plan: both programs, and seconds of each round."""

    name: str
    hand: CompiledStep
    plan: CompiledStep
    hand_s: list[float]
    plan_s: list[float]
    again_s: list[float]

    @property
    def same(self) -> bool:
        return self.hand.sizes == self.plan.sizes


def hand_written(name: str, step: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh) -> Any:
    """Returns the step under a plan in plain JAX."""
    shardings = hand_shardings(name, args, mesh)
    whole = NamedSharding(mesh, P())
    return jax.jit(
        step, in_shardings=shardings, out_shardings=(shardings[0], whole), donate_argnums=(0,)
    )


def hand_shardings(name: str, args: tuple[Any, ...], mesh: Mesh) -> tuple[Any, ...]:
    """Returns the shardings of the step's state, batch and key. The optimizer's moments are split
    like their parameters."""
    state, batch, *key = args
    return (
        _by_name(state, WEIGHTS if name == "megatron" else {}, mesh),
        _by_name(batch, BATCH if name == "data_parallel" else {}, mesh),
        *(NamedSharding(mesh, P()) for _ in key),
    )


def _by_name(tree: Any, specs: Mapping[str, P], mesh: Mesh) -> Any:
    """Returns a sharding per leaf, by the last name on its path; what has no spec is whole."""

    def of(path: tuple[Any, ...], _: Any) -> NamedSharding:
        return NamedSharding(mesh, specs.get(getattr(path[-1], "key", ""), P()))

    return jax.tree_util.tree_map_with_path(of, tree)


def planned(name: str, step: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh) -> Any:
    """Returns the same from CFP's template, which knows no names."""
    plan = getattr(templates, name)(step, *args, mesh=mesh)
    return plan.jit(step, donate_argnums=(0,))


def compile_step(jitted: Any, args: tuple[Any, ...], mesh: Mesh) -> CompiledStep:
    compiled = jitted.lower(*args).compile()
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    return CompiledStep(
        collectives=parse_collectives(text, mesh.devices.size),
        flops=compiled.cost_analysis()["flops"],
        memory_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        instructions=_instructions(text),
    )


def _instructions(text: str) -> Counter[str]:
    """Returns the instructions without what names them: results, operands, called computations,
    sources."""
    found = (line.strip() for line in text.splitlines() if re.match(r"\s+(ROOT )?%\S+ = ", line))
    return Counter(
        re.sub(r"%[\w.\-]+", "%", re.sub(r", metadata=\{[^}]*\}", "", line)) for line in found
    )


def make_mesh(size: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:size]), (AXIS,))


def measure(name: str, step: Any, args: tuple[Any, ...], mesh: Mesh, runs: int) -> Row:
    by_hand, by_plan = hand_written(name, step, args, mesh), planned(name, step, args, mesh)
    shardings = hand_shardings(name, args, mesh)

    def copy() -> tuple[Any, ...]:  # a state of one's own to donate
        return (jax.tree.map(jnp.copy, args[0]), *args[1:])

    entries = {
        "hand": (by_hand, jax.device_put(copy(), shardings)),
        "plan": (by_plan, by_plan.plan.place(*copy())),
        "again": (by_hand, jax.device_put(copy(), shardings)),
    }
    hand, plan = (compile_step(*entries[who], mesh) for who in ("hand", "plan"))
    times = time_in_turns(entries, runs)
    return Row(name, hand, plan, times["hand"], times["plan"], times["again"])


def time_in_turns(
    entries: Mapping[str, tuple[Any, tuple[Any, ...]]], runs: int, warm: int = 3
) -> dict[str, list[float]]:
    """Returns seconds of each step in each round, from steps with the arguments they start from."""
    states = {who: args[0] for who, (_, args) in entries.items()}
    times: dict[str, list[float]] = {who: [] for who in entries}
    order = np.random.default_rng(0)
    for turn in range(warm + runs):
        for who in order.permutation(list(entries)):  # no one always comes after the same other
            step, (_, *rest) = entries[who]
            start = time.perf_counter()
            states[who], _ = jax.block_until_ready(step(states[who], *rest))
            if turn >= warm:
                times[who].append(time.perf_counter() - start)
    return times


def ratio(ours: list[float], theirs: list[float], draws: int = 10_000) -> Ratio:
    """Returns the ratio of times taken in the same rounds."""
    rounds = np.array(ours) / np.array(theirs)
    drawn = np.random.default_rng(0).choice(rounds, (draws, len(rounds)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Ratio(float(np.median(rounds)), float(low), float(high))


def per_call_us(rounds: int = 200, calls: int = 100) -> tuple[float, float]:
    """Microseconds of one call by `jax.jit` and by a `PlannedStep`: medians, taken in turns."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return x @ w

    mesh = make_mesh(1)
    where = NamedSharding(mesh, P())
    args = (jax.device_put(jnp.ones((1, 1)), where),) * 2
    plan = templates.data_parallel(step, *args, mesh=mesh)
    by_hand = jax.jit(step, in_shardings=(where, where), out_shardings=where)
    steps: tuple[Callable[..., Any], ...] = (by_hand, plan.jit(step))
    for run in steps:
        run(*args)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, seen in zip(steps, times, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                run(*args)
            seen.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def table(rows: list[Row], call_us: tuple[float, float], command: str) -> str:
    device = jax.devices()[0]
    lines = [
        "# `plan.jit` against shardings written by hand",
        "",
        f"`{command}`, JAX {jax.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {device.device_kind} devices, {os.cpu_count()} cores. Bytes, FLOPs "
        "and memory are one device's. Times are medians with quartiles; the steps take turns "
        "in random order, each training a state of its own, donated and fed back.",
        "",
        "| plan | written | collectives | FLOPs | memory, bytes | step, ms |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        for who, program, seconds in (
            ("by hand", row.hand, row.hand_s),
            ("`plan.jit`", row.plan, row.plan_s),
        ):
            low, middle, high = np.percentile(seconds, [25, 50, 75]) * 1e3
            moved = ", ".join(f"{n} {kind}, {b:,} bytes" for kind, (n, b) in program.moved.items())
            lines.append(
                f"| {row.name} | {who} | {moved or 'none'} | {program.flops:,.0f} | "
                f"{program.memory_bytes:,} | {middle:.1f} ({low:.1f} to {high:.1f}) |"
            )
    lines += [
        "",
        "Ratios of times with 95 % intervals. The control is the hand-written step against itself, "
        "training another state. Programs of the same instructions can differ only by noise.",
        "",
        "| plan | collectives | instructions | `plan.jit` / by hand | verdict | control |",
        "|---|---|---|---:|---|---:|",
    ]
    for row in rows:
        ours, control = ratio(row.plan_s, row.hand_s), ratio(row.again_s, row.hand_s)
        equal = row.plan.instructions == row.hand.instructions
        lines.append(
            f"| {row.name} | {'same' if row.same else '**differ**'} | "
            f"{'same' if equal else 'differ'} | {ours.show()} | "
            f"{'within noise' if ours.tie else '**differ**'} | {control.show()} |"
        )
    by_jit, by_plan = call_us
    lines += [
        "",
        f"Calling a trivial step takes {by_jit:.2f} µs by `jax.jit` and {by_plan:.2f} µs by "
        f"`plan.jit`: {by_plan - by_jit:+.2f} µs per call.",
        "",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.apply_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mesh", type=int, default=4, help="devices")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--size", default="small", help="of GPT: tiny, small")
    parser.add_argument("--batch", type=int, help="rows of the batch; one per device if left out")
    parser.add_argument("--runs", type=int, default=20, help="rounds timed")
    parser.add_argument("--out", type=Path, default=OUT, help="where the table goes")
    chosen = parser.parse_args(argv)
    jax.config.update("jax_num_cpu_devices", chosen.mesh)
    mesh = make_mesh(chosen.mesh)
    chosen.batch = chosen.batch or chosen.mesh
    step, args = make_step(
        config("gpt", chosen.size, layers=chosen.layers, batch=chosen.batch), abstract=False
    )
    rows: list[Row] = []
    for name in NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(name, step, args, mesh, chosen.runs))
    given = ("mesh", "layers", "size", "batch", "runs")
    options = " ".join(f"--{option} {getattr(chosen, option)}" for option in given)
    text = table(rows, per_call_us(), f"python -m bench.apply_overhead {options}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(text)
    print(text)
    for row in rows:
        if not row.same:
            print(f"{row.name} by hand:\n{row.hand.show()}", file=sys.stderr)
            print(f"{row.name} by plan.jit:\n{row.plan.show()}", file=sys.stderr)
    return 0 if all(row.same for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
