"""Does a plan still fit its step, after an upgrade or a change of the model?

    step          the plan's arguments and segments are those of the step
    collectives   the compiled step sends what is recorded in the plan, kind by kind
    memory        it needs what is recorded, up to `MORE_MEMORY`, and no more than the limit
    speed         where asked: the step is run again, beside the time that is recorded

The environment is noted and never counts: what it changes shows in the others. What was not
recorded is said to be so, and counts neither way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cfp.errors import CfpError
from cfp.memory_size import bytes_text
from cfp.plan import Collective, Plan
from cfp.plan.environment import Environment
from cfp.planning.compare import ComparedPlan, compare
from cfp.profile import Progress
from cfp.profile.measure.budget import ROUNDS
from cfp.profile.measure.confidence import EQUIVALENT

MORE_MEMORY = 1.02  # of what is recorded: releases of a compiler place buffers a little otherwise


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fits` is None where there was nothing to compare with."""

    what: str
    fits: bool | None
    text: str

    def show(self) -> str:
        mark = {True: "fits", False: "differs", None: "note"}[self.fits]
        return f"{mark:<8} {self.what}: {self.text}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found. The plan fits if nothing differs."""

    plan: str
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return not any(finding.fits is False for finding in self.findings)

    def show(self) -> str:
        return "\n".join(finding.show() for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        found = [asdict(finding) for finding in self.findings]
        return {"plan": self.plan, "fits": self.fits, "findings": found}


def check(
    step: Callable[..., Any],
    *args: Any,
    plan: Plan,
    measure: bool = False,
    rounds: int = ROUNDS,
    progress: Progress | bool | None = None,
) -> Checked:
    """Returns whether a plan still fits a step: its arguments and segments, what it sends, and the
    memory it needs, beside what the plan has recorded. With `measure` the step is run, for its
    speed.

        print(cfp.check(step, *args, plan=cfp.load("plan.json", mesh=mesh)).show())
    """
    try:
        bound = plan.bind(step, *args)
    except CfpError as error:
        return Checked(plan.name, (Finding("step", False, str(error)),))
    findings = [
        _of_step(bound),
        _of_environment(plan),
        *_of_collectives(_recorded(plan), bound.collectives()),
        *_of_memory(plan, bound.memory_bytes()),
    ]
    if measure:
        measured = compare(
            step, *args, mesh=plan.mesh, plans={"plan": bound}, rounds=rounds, progress=progress
        )
        findings.append(_of_speed(plan, measured.plans[0]))
    return Checked(plan.name, tuple(findings))


def _of_step(plan: Plan) -> Finding:
    tensors, segments = len(plan.arguments), len(plan.segments)
    return Finding("step", True, f"its {tensors} arguments and {segments} segments are the plan's.")


def _of_environment(plan: Plan) -> Finding:
    other = plan.environment.differences(Environment.of(plan.mesh))
    if not other:
        return Finding("environment", True, "it is the one that the plan was made in.")
    return Finding("environment", None, f"the plan was made elsewhere: {'; '.join(other)}.")


def _recorded(plan: Plan) -> tuple[Collective, ...] | None:
    if plan.saved_collectives is not None:
        return plan.saved_collectives
    return None if plan.bound is None else plan.bound.compiled.get("collectives")


def _of_collectives(
    recorded: tuple[Collective, ...] | None, found: Iterable[Collective]
) -> list[Finding]:
    """Returns a finding for every kind of collective that differs, or one for all of them."""
    now = _sent(found)
    if recorded is None:
        text = f"none are recorded in the plan. The step sends {_text(sum(now.values()))} now."
        return [Finding("collectives", None, text)]
    before = _sent(recorded)
    if now == before:
        total = _text(sum(now.values()))
        return [Finding("collectives", True, f"they are as recorded, {total} on each device.")]
    return [
        Finding(
            "collectives",
            False,
            f"{kind} over {axes} is {_text(now[kind, axes])} a step, and was "
            f"{_text(before[kind, axes])}.",
        )
        for kind, axes in sorted({*now, *before})
        if now[kind, axes] != before[kind, axes]
    ]


def _sent(collectives: Iterable[Collective]) -> Counter[tuple[str, str]]:
    """Returns the bytes of a step by kind and mesh axes. How many collectives carry them is the
    compiler's affair, which merges them."""
    sent: Counter[tuple[str, str]] = Counter()
    for one in collectives:
        axes = "part of an axis" if one.axes is None else ", ".join(one.axes)
        sent[one.kind, axes] += one.bytes * one.times
    return sent


def _of_memory(plan: Plan, now_bytes: int) -> list[Finding]:
    evidence = plan.evidence
    own = None if evidence is None else evidence.own
    limit = None if evidence is None else evidence.memory_limit_bytes
    now = bytes_text(now_bytes)
    findings = []
    if limit is not None and now_bytes > limit:
        text = f"the step needs {now} on each device, above the limit of {bytes_text(limit)}."
        findings.append(Finding("memory", False, text))
    if own is None or own.memory_bytes is None:
        text = f"none is recorded in the plan. The step needs {now} on each device now."
        return [*findings, Finding("memory", None, text)]
    fits = now_bytes <= MORE_MEMORY * own.memory_bytes
    text = f"the step needs {now} on each device, recorded are {bytes_text(own.memory_bytes)}."
    return [*findings, Finding("memory", fits, text)]


def _of_speed(plan: Plan, now: ComparedPlan) -> Finding:
    """Returns what a fresh measurement shows. The rounds are not those of the recorded one: the
    step counts as slower where the two intervals are more than `EQUIVALENT` apart."""
    if now.failed is not None:
        return Finding("speed", False, f"the step does not run: {now.failed}")
    own = None if plan.evidence is None else plan.evidence.own
    said = f"a step takes {now.time_s * 1e3:.3g} ms"
    if own is None or own.high_s is None:
        return Finding("speed", None, f"none is recorded in the plan. {said.capitalize()} now.")
    fits = now.low_s <= EQUIVALENT * own.high_s
    return Finding("speed", fits, f"{said}, recorded are {own.time_s * 1e3:.3g} ms.")


def _text(count: int) -> str:
    return bytes_text(count) if count else "nothing"
