"""The verdict on a plan in a few lines that need no other: what it takes, beside what people would
do without it, and why. The terminal and the page say it in the same words."""

from __future__ import annotations

from dataclasses import dataclass

from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, MeasuredStep
from cfp.plan.target import Target
from cfp.profile.measure.confidence import EQUIVALENT, Verdict
from cfp.profile.measure.full_step import ALONE
from cfp.profile.measure.measurement import Provenance
from cfp.report.text import mesh_text, time_text

ABOUT = 1.05  # the ratio of bytes up to which two plans send about as much


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast as another step the plan's own is, by the rounds that both ran in:
    between `low` and `high`, which are None where the rounds are too few to tell."""

    name: str
    times: float
    low: float | None
    high: float | None
    verdict: Verdict

    def show(self) -> str:
        """Returns `1.32 times as fast as megatron (1.20 to 1.41)`."""
        if self.verdict is Verdict.TIE:
            return f"as fast as {self.name}"
        between = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        if self.verdict is Verdict.LEVEL:
            return f"level with {self.name}, as far as the links are known"
        if self.verdict is Verdict.UNTOLD:
            return f"not told apart from {self.name}{between}"
        return f"{self.times:.2f} times as fast as {self.name}{between}"


def speedups(evidence: Evidence) -> list[Speedup]:
    """Returns how the plan compares with all that ran beside it on fresh rounds, the fastest of
    them first."""
    own = next(iter(evidence.confirmed), None)
    if own is None or not own.ran:
        return []
    found = []
    for step in evidence.confirmed[1:]:
        if not step.ran:
            continue
        judged = step.beside(own)
        if judged.ratio is not None:
            found.append(Speedup(step.name, judged.ratio, judged.low, judged.high, judged.verdict))
    return sorted(found, key=lambda one: one.times)


def verdict_lines(plan: Plan) -> list[str]:
    """Returns the five lines: time, comparison, memory, throughput, and why."""
    evidence = plan.evidence
    if evidence is None or plan.predicted is None:
        return [
            f"{plan.name} splits the step over a mesh of {mesh_text(plan)}.",
            "Nothing was measured for this plan: `cfp compare` measures it beside others.",
        ]
    lines = [
        _time_line(plan, evidence),
        _compared_line(evidence),
        _memory_line(plan, evidence),
        _throughput_line(plan, evidence),
        why(evidence),
    ]
    return [line for line in lines if line is not None]


def step_s(plan: Plan) -> float | None:
    """Returns the measured seconds of the plan's step, else the predicted ones."""
    own = None if plan.evidence is None else plan.evidence.own
    if own is not None:
        return own.time_s
    return None if plan.predicted is None else plan.predicted.time_s


def _time_line(plan: Plan, evidence: Evidence) -> str:
    assert plan.predicted is not None
    where = f"on {plan.mesh.size} devices ({mesh_text(plan)}, {plan.environment.device_kind})"
    predicted = time_text(plan.predicted.time_s)
    own = evidence.own
    if own is None:
        return f"A step is predicted to take {predicted} {where}; no full step was run."
    off = plan.predicted.time_s / own.time_s - 1
    takes = "takes" if own.provenance is Provenance.MEASURED else "would take"
    return (
        f"A step {takes} {time_text(own.time_s)} {where}, {own.provenance}; {predicted} was "
        f"predicted ({off:+.0%})."
    )


def _compared_line(evidence: Evidence) -> str:
    found = speedups(evidence)
    if not found:
        return "Nothing ran beside it: `cfp plan --beside all` compares it with the usual plans."
    said = "; ".join(one.show() for one in found[:3])
    more = f"; {len(found) - 3} more in the table" if len(found) > 3 else ""
    return f"It is {said}{more}."


def _memory_line(plan: Plan, evidence: Evidence) -> str:
    assert plan.predicted is not None
    own, limit = evidence.own, evidence.memory_limit_bytes
    needs = None if own is None else own.memory_bytes
    text = f"Each device needs {bytes_text(plan.predicted.memory_bytes)}, as predicted"
    if needs is not None:
        text = f"Each device needs {bytes_text(needs)}"
    if limit is None:
        return f"{text}; there was no memory limit."
    return f"{text} of the {bytes_text(limit)} that it may use."


def _throughput_line(plan: Plan, evidence: Evidence) -> str | None:
    seconds = step_s(plan)
    if not seconds:
        return None
    parts = []
    tokens = tokens_of(plan.target)
    if tokens is not None:
        parts.append(f"{tokens / seconds:,.0f} tokens/s")
    if evidence.flops:
        rate = evidence.flops / seconds / plan.mesh.size
        peak = evidence.peak_flops
        mfu = f", {rate / peak:.0%} of its peak (MFU)" if peak else ""
        parts.append(f"{flops_text(rate)} on each device{mfu}")
    return f"It trains {' and computes '.join(parts)}." if parts else None


def why(evidence: Evidence) -> str:
    """Returns one sentence on why this plan won, by what it and its closest rival send."""
    own = next(iter(evidence.confirmed), None)
    rivals = [s for s in speedups(evidence) if s.name != ALONE]
    if own is None or not rivals:
        return (
            "It is the fastest of all that could be composed of the measured ways to split the "
            "step's parts."
        )
    first = rivals[0]
    rival = next(step for step in evidence.confirmed if step.name == first.name)
    sends = f"{_parts(own, rival)}{_sending(own, rival)}"
    if first.verdict is Verdict.FASTER:
        return f"{first.name} is faster: plan again with a longer budget."
    if first.verdict is Verdict.TIE:
        return f"It is as fast as {first.name}, within {EQUIVALENT - 1:.0%}{sends}."
    if first.verdict is Verdict.LEVEL:
        return f"It is level with {first.name}, as far as the links are known{sends}."
    if first.verdict is Verdict.UNTOLD:
        return f"The rounds do not tell it apart from {first.name}, the closest{sends}."
    return f"It wins over {first.name}, the closest{sends}."


def _parts(own: MeasuredStep, rival: MeasuredStep) -> str:
    """Returns `: it communicates for 2 ms (fsdp: 4 ms) and computes for ...`, where measured."""
    mine = (own.exposed_s, own.compute_s)
    theirs = (rival.exposed_s, rival.compute_s)
    if None in (*mine, *theirs):
        return ""
    said = [
        f"{does} for {time_text(a or 0.0)} ({rival.name}: {time_text(b or 0.0)})"
        for does, a, b in zip(("communicates", "computes"), mine, theirs, strict=True)
    ]
    return f": it {' and '.join(said)}"


def _sending(own: MeasuredStep, rival: MeasuredStep) -> str:
    """Returns `; this plan sends less: 2 MiB a step, fsdp 4 MiB`; nothing where it is not known."""
    if own.sent is None or rival.sent is None:
        return ""
    mine, theirs = (sum(row.bytes for row in step.sent or ()) for step in (own, rival))
    both = f"{bytes_text(mine)} a step, {rival.name} {bytes_text(theirs)}"
    if mine * ABOUT < theirs:
        return f"; this plan sends less: {both}"
    if theirs * ABOUT < mine:
        return f"; this plan sends more: {both}"
    return f"; both send about as much: {both}"


def tokens_of(target: Target | None) -> int | None:
    """Returns the tokens of a step of a built-in model; None for a step whose data is not known."""
    options = {} if target is None else dict(target.options)
    batch, seq = options.get("batch"), options.get("seq")
    return batch * seq if isinstance(batch, int) and isinstance(seq, int) else None


def flops_text(per_s: float) -> str:
    """Returns FLOPs per second in a unit that fits.

    >>> flops_text(3.2e12), flops_text(45e9)
    ('3.2 TFLOP/s', '45.0 GFLOP/s')
    """
    for unit, size in (("TFLOP/s", 1e12), ("GFLOP/s", 1e9)):
        if per_s >= size:
            return f"{per_s / size:.1f} {unit}"
    return f"{per_s / 1e6:.1f} MFLOP/s"
