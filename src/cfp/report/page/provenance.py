"""Where the numbers come from: what was measured and how, what was not, and how to do it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cfp.plan import Plan
from cfp.plan.evidence import Evidence
from cfp.profile.measure.full_step import ALONE
from cfp.report.steps import how_known


@dataclass(frozen=True, slots=True)
class ProvenanceSection:
    """`numbers` say of each sort of number where it comes from, `unmeasured` what was not measured,
    `spent` what each stage of planning took, with its share in per cent."""

    numbers: tuple[tuple[str, str], ...]
    unmeasured: tuple[str, ...]
    spent: tuple[tuple[str, float, float], ...]
    environment: tuple[tuple[str, str], ...]
    command: str | None


def provenance_of(plan: Plan) -> ProvenanceSection:
    made = tuple((name, str(value)) for name, value in asdict(plan.environment).items())
    command, evidence = command_of(plan), plan.evidence
    if evidence is None:
        nothing = ("Nothing was measured: this plan follows a rule.",)
        return ProvenanceSection((), nothing, (), made, command)
    total_s = sum(one.seconds for one in evidence.spent) or 1.0
    spent = tuple((s.stage, s.seconds, 100 * s.seconds / total_s) for s in evidence.spent)
    return ProvenanceSection(_numbers(evidence), tuple(_unmeasured(evidence)), spent, made, command)


def command_of(plan: Plan) -> str | None:
    """Returns the command that makes such a plan again; None where the plan names no target."""
    if plan.target is None or plan.evidence is None:
        return None
    words = ["cfp plan", plan.target.show(), "--mesh", "x".join(map(str, plan.mesh_shape))]
    if plan.environment.platform == "cpu":
        words.append("--platform cpu")
    if plan.evidence.memory_limit_bytes is not None:
        words.append(f"--memory-limit {plan.evidence.memory_limit_bytes}")
    beside = [step.name for step in plan.evidence.confirmed[1:] if step.name != ALONE]
    if beside:
        words.append(f"--beside {','.join(beside)}")
    if plan.sequence:
        words.append("--sequence")
    return " ".join(words)


def _numbers(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    found = _measured(evidence)
    links = evidence.links
    if links is None:
        return found
    return (
        (
            "communication",
            f"replayed, not measured: {links.stand_ins} stood in for all devices, and links say "
            f"what collectives take: {links.show()}",
        ),
        *((name, source) for name, source in found if name != "computing and communicating"),
    )


def _taken_over(evidence: Evidence) -> str:
    count = evidence.taken_over
    return f", and {count} with the kernels of another program that ran" if count else ""


def _measured(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    measured = evidence.programs - evidence.loaded
    rounds = len(evidence.confirmed[0].runs_s) if evidence.confirmed else 0
    how = how_known(evidence)
    counted = "medians, with the time to start a program taken off"
    if evidence.links is not None:
        counted = "kernels were measured, without the time to start a program"
    decided = len(evidence.steps[0].runs_s) if evidence.steps else 0
    return (
        (
            "time of a segment's option",
            f"{how}: {measured} programs in this run, {evidence.loaded} found in the store of "
            f"earlier runs{_taken_over(evidence)}; {counted}",
        ),
        ("computing and communicating", "measured, by the profiler's recording of a run"),
        (
            "time of the step, predicted",
            "composed of measured segments and reshardings, and what starting the step takes",
        ),
        (
            "time of a full step",
            f"{how}: the kernels of recorded runs, with what links say of collectives"
            if rounds and evidence.links is not None
            else f"{how}: medians of {rounds} fresh rounds, every plan in every round"
            if rounds
            else f"{how} in the {decided} rounds that decided the choice"
            if decided
            else "not measured",
        ),
        ("memory of a full step", "the compiler's figure for the program that ran"),
        (
            "memory of the frontier's plans",
            "composed of the compiler's figures for segments; corrected by that of a full step "
            "where a note says so",
        ),
        ("collectives", "read from the compiled program"),
        ("values", f"the programs ran on random values of seed {evidence.seed}"),
    )


def _unmeasured(evidence: Evidence) -> list[str]:
    said = [
        f"The budget ended before this was measured to the end: {one}." for one in evidence.missing
    ]
    for index, kind in enumerate(evidence.kinds):
        if kind.ways < kind.space:
            ends = "" if kind.finished else "; the budget ended before the choice was settled"
            said.append(
                f"Kind {index} ({kind.name}): {kind.ways} of {kind.space} ways to split it were "
                f"measured{ends}."
            )
        if kind.left_out:
            said.append(f"Kind {index}: {kind.left_out} slower options are not kept in this plan.")
    for step in (*evidence.steps, *evidence.confirmed):
        if not step.ran:
            said.append(f"The full step of {step.name} {step.why_not()}.")
    for one in evidence.failed:
        said.append(f"{one.name} does not run: {one.reason}.")
    if not evidence.kinds:
        said.append("This plan is of an older cfp, which did not keep the measured options.")
    return list(dict.fromkeys(said))
