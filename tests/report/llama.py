"""A plan of LLaMA-7B over 8 devices as the planner would hand it over, all of its numbers invented:
32 layers, every parameter with its Adam moments, and as many measured options as a plan keeps."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import Any

from cfp.layouts.state import State
from cfp.plan import Collective, Origin, Plan, Predicted
from cfp.plan.choice import BlockChoice, SegmentChoice
from cfp.plan.environment import Environment
from cfp.plan.evidence import Evidence, FrontierPoint, MeasuredStep, SegmentCost, Spent
from cfp.plan.measured_kinds import MeasuredBlock, MeasuredKind, MeasuredOption
from cfp.plan.target import Target
from cfp.plan.tensor import PlannedTensor
from cfp.profile.measure.confidence import median_interval
from cfp.profile.measure.sent import Sent
from tests.plan.steps import mesh_of

LAYERS, HIDDEN, FFN, VOCAB, BATCH, SEQ = 32, 4096, 11008, 32000, 16, 2048
GIB, MIB = 2**30, 2**20
WEIGHTS = {  # a layer's, by name: shape, and the dim that is split
    "q": ((HIDDEN, HIDDEN), 1),
    "k": ((HIDDEN, HIDDEN), 1),
    "v": ((HIDDEN, HIDDEN), 1),
    "out": ((HIDDEN, HIDDEN), 0),
    "gate": ((HIDDEN, FFN), 1),
    "up": ((HIDDEN, FFN), 1),
    "down": ((FFN, HIDDEN), 0),
    "norm1": ((HIDDEN,), None),
    "norm2": ((HIDDEN,), None),
}
BLOCKS = ("q", "out", "gate", "down")
STRATEGIES = ("batch", "output features", "input features")
CHOSEN = (1, 2, 1, 2)


def make_plan() -> Plan:
    """Returns the plan; it knows no step, as one that was read from a file."""
    mesh = mesh_of(8)
    return Plan(
        name="cfp",
        mesh=mesh,
        argument_names=("state", "batch"),
        arguments=tuple(_arguments()),
        results=(),
        segments=tuple(_segments()),
        values=(),
        sequence=False,
        environment=Environment("0.0.1", "0.0.1", "0.0.1", "gpu", "NVIDIA H200", 1),
        notes=("All numbers of this plan are invented.",),
        predicted=Predicted(0.337, 0.28, 0.057, 75 * GIB),
        evidence=_evidence(),
        target=Target(
            "llama",
            (("size", "7b"), ("layers", LAYERS), ("batch", BATCH), ("seq", SEQ)),
            ("size", "batch"),
        ),
        saved_collectives=tuple(_collectives()),
    )


def _arguments() -> list[PlannedTensor]:
    found = []
    for section in ("state.params", "state.opt_state[0].mu", "state.opt_state[0].nu"):
        for name, shape in (("tokens", (VOCAB, HIDDEN)), ("head", (HIDDEN, VOCAB))):
            split = None if name == "tokens" else 1
            found.append(PlannedTensor(f"{section}['{name}']", shape, "bfloat16", (split,)))
        for layer, (name, (dims, split)) in itertools.product(range(LAYERS), WEIGHTS.items()):
            path = f"{section}['layers'][{layer}]['{name}']"
            found.append(PlannedTensor(path, dims, "bfloat16", (split,)))
    found.append(PlannedTensor("batch['tokens']", (BATCH, SEQ), "int32", (0,)))
    return [*found, PlannedTensor("state.step", (), "int32", (None,))]


def _seed(layer: int | str, name: str) -> str:
    rows, columns = WEIGHTS[name][0]
    path = f"state.params['layers'][{layer}]['{name}']"
    return f"product [{BATCH},{SEQ},{rows}] x {path}[{rows},{columns}] at llama.py:61 (layer)"


def _segments() -> list[SegmentChoice]:
    embed = f"lookup state.params['tokens'][{VOCAB},{HIDDEN}] x [{BATCH},{SEQ},1] at llama.py:45"
    head = f"product [{BATCH},{SEQ},{HIDDEN}] x state.params['head'][{HIDDEN},{VOCAB}] at llama.py"
    layers = [
        SegmentChoice(
            "2" * 16,
            tuple(
                BlockChoice(_seed(i, name), (STRATEGIES[choice],))
                for name, choice in zip(BLOCKS, CHOSEN, strict=True)
            ),
            State.ZERO1,
        )
        for i in range(LAYERS)
    ]
    first = SegmentChoice("1" * 16, (BlockChoice(embed, ("batch",)),), State.BLOCK)
    last = SegmentChoice("3" * 16, (BlockChoice(head, ("output features",)),), State.BLOCK)
    return [first, *layers, last]


def _options(draw: random.Random, blocks: int, chosen: tuple[int, ...], state: str) -> Any:
    made = []
    for combo in itertools.product(range(len(STRATEGIES)), repeat=blocks):
        for how in ("block", "zero1", "fsdp"):
            off = sum(a != b for a, b in zip(combo, chosen, strict=True)) + (how != state) / 2
            talks_s = 1.6e-3 * (1 + off * draw.uniform(0.4, 1.2))
            computes_s = 8.4e-3 * (1 + 0.1 * off * draw.random())
            words = ", ".join(STRATEGIES[i] for i in combo)
            made.append(
                MeasuredOption(
                    words if how == "block" else f"{words} ({how})",
                    combo,
                    how,
                    computes_s + talks_s,
                    2e-4,
                    computes_s,
                    talks_s,
                    int((2.1 + 0.3 * off + {"block": 0.8, "zero1": 0.3, "fsdp": 0.0}[how]) * GIB),
                    off > 3,
                    (
                        Sent("all-reduce", (0,), "llama.py:61 (layer)", 4, (1 + off) * 64.0 * MIB),
                        Sent("all-gather", (0,), "llama.py:52 (norm)", 2, off * 16.0 * MIB),
                    ),
                )
            )
    return tuple(sorted(made, key=lambda one: one.time_s))


def _kind(
    name: str, segments: range, seeds: tuple[str, ...], chosen: tuple[int, ...], state: str
) -> MeasuredKind:
    options = _options(random.Random(0), len(seeds), chosen, state)
    ends = ("dot_general does not keep output features", "reduce_sum does not keep output features")
    blocks = tuple(
        MeasuredBlock((seed,), STRATEGIES, (BATCH, HIDDEN, HIDDEN), ends[:1], STRATEGIES, 1e12)
        for seed in seeds
    )
    space = len(STRATEGIES) ** len(seeds)
    return MeasuredKind(
        name, tuple(segments), len(segments), space, space, True, blocks, options, left_out=0
    )


def _evidence() -> Evidence:
    choices = _segments()
    layer = f"{', '.join(STRATEGIES[i] for i in CHOSEN)} (zero1)"
    ends = SegmentCost("batch", 4e-3, 3e-3, 1e-3, 0.0, 3 * GIB, GIB)
    costs = [
        ends,
        *(
            SegmentCost(layer, 0.01, 8.4e-3, 1.6e-3, 1e-4 if i == 0 else 0.0, 2 * GIB, GIB)
            for i in range(LAYERS)
        ),
        SegmentCost("output features", 9e-3, 7e-3, 2e-3, 0.0, 4 * GIB, 2 * GIB),
    ]
    steps = [
        ("predicted 1", 0.337, 0.343, 77, 1.0),
        ("fsdp", None, 0.356, 61, 1.6),
        ("megatron", None, 0.391, 79, 1.9),
        ("zero1", None, 0.349, 90, 1.2),
        ("data_parallel", None, 0.447, 118, 3.1),
    ]
    return Evidence(
        memory_limit_bytes=132 * GIB,
        slack_bytes=GIB // 8,
        seed=0,
        seconds=396,
        programs=420,
        loaded=0,
        start_s=1e-3,
        segments=tuple(costs),
        frontier=tuple(
            FrontierPoint(
                0.337 + 0.0015 * (19 - i) ** 1.5,
                (56 + i) * GIB,
                f"0: batch; 1-32: way {i}; 33: batch",
            )
            for i in range(20)
        ),
        steps=tuple(_step(*one) for one in [steps[0], ("predicted 2", 0.341, 0.352, 74, 1.1)]),
        confirmed=(
            *(_step(*one) for one in steps),
            MeasuredStep("alpa", None, failed="its integer program has no solution in 60 s"),
            MeasuredStep("one device alone", None, left_out="its arguments need 75.3 GiB"),
        ),
        kinds=(
            _kind("lookup", range(1), (choices[0].blocks[0].seed,), (0,), "block"),
            _kind("layer", range(1, 33), tuple(_seed(0, name) for name in BLOCKS), CHOSEN, "zero1"),
            _kind("loss", range(33, 34), (choices[-1].blocks[0].seed,), (1,), "block"),
        ),
        spent=(
            Spent("analysing the step", 9.1),
            Spent("measuring segments and reshardings", 241.0),
            Spent("searching", 1.3),
            Spent("running full steps", 139.0),
            Spent("all else", 5.6),
        ),
        flops=1.4e15,
        peak_flops=989.4e12,
    )


def _step(
    name: str, predicted_s: float | None, time_s: float, gib: int, sends: float
) -> MeasuredStep:
    draw = random.Random(name)
    runs_s = tuple(time_s * (1 + 0.01 * draw.uniform(-1, 1)) for _ in range(15))
    sent = (
        Sent("all-reduce", (0,), "llama.py:61 (layer)", 128, sends * 8 * GIB),
        Sent("all-gather", (0,), "llama.py:52 (norm)", 64, (sends - 1) * 4 * GIB),
    )
    middle, interval = statistics.median(runs_s), median_interval(runs_s)
    talks_s = middle * (1 - 1 / (1.2 + 0.2 * (sends - 1)))
    return MeasuredStep(
        name,
        predicted_s,
        middle,
        *interval,
        gib * GIB,
        runs_s=runs_s,
        sent=sent,
        compute_s=middle - talks_s,
        exposed_s=talks_s,
    )


def _collectives() -> list[Collective]:
    found = []
    for layer, (place, name) in itertools.product(range(LAYERS), enumerate(BLOCKS)):
        for role in ("forward", "backward"):
            size = 2 * BATCH * SEQ * HIDDEN
            block = 1 + len(BLOCKS) * layer + place
            source = f"llama.py:{60 + place} (layer)"
            origin = Origin(
                size, (BATCH, SEQ, HIDDEN), "bf16", role, "dot_general", 1 + layer, block, source
            )
            kind = "all-reduce" if name in ("out", "down") else "all-gather"
            found.append(Collective(kind, size, ("x",), 1, (origin,)))
    return found
