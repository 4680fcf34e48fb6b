"""Why not X? Every alternative that was measured beside what was chosen: templates as full steps,
and for every block the best option of each other strategy.

    difference of a strategy = (its best option - the chosen option) * occurrences

which leaves out what resharding to other neighbours would take. The collectives are those by which
the two programs differ, the largest difference first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.choice import segments_text
from cfp.plan.evidence import Evidence, MeasuredStep
from cfp.plan.measured_kinds import MeasuredKind, MeasuredOption
from cfp.profile.measure.sent import UNKNOWN, Sent
from cfp.report.page.strip import seed_name
from cfp.report.text import time_text

MOST_CAUSES = 4  # collectives shown of one alternative: more do not explain, they list


@dataclass(frozen=True, slots=True)
class Alternative:
    """What was not chosen. Differences are to what was, per step; None where not measured.
    `why_not` says why there are no figures; `causes` is None where nothing recorded what is
    sent."""

    group: str  # what it is an alternative to: a full step, or a block of some segments
    name: str
    difference_s: float | None = None
    between: str = ""
    compute_s: float | None = None
    communication_s: float | None = None
    memory_bytes: int | None = None
    why_not: str | None = None
    causes: tuple[str, ...] | None = None


def alternatives(plan: Plan) -> list[Alternative]:
    evidence = plan.evidence
    if evidence is None:
        return []
    names = plan.mesh.axis_names
    found = list(_templates(evidence, names))
    for kind in evidence.kinds:
        chosen = _chosen(evidence, kind)
        if chosen is not None:
            for place in range(len(kind.blocks)):
                found += _strategies(kind, place, chosen, names)
    return found


def _templates(evidence: Evidence, names: Sequence[str]) -> Iterator[Alternative]:
    own = next(iter(evidence.confirmed), None)
    for step in evidence.confirmed[1:]:
        if own is None or not (step.ran and own.ran):
            yield Alternative("the whole step", step.name, why_not=_unmeasured(step))
            continue
        judged = step.beside(own)
        between = ""
        if judged.low is not None and judged.high is not None:
            between = f"{judged.low:.2f}x to {judged.high:.2f}x, {judged.verdict}"
        yield Alternative(
            "the whole step",
            step.name,
            difference_s=step.time_s - own.time_s,
            between=between,
            compute_s=_difference(step.compute_s, own.compute_s, 1),
            communication_s=_difference(step.exposed_s, own.exposed_s, 1),
            memory_bytes=(step.memory_bytes or 0) - (own.memory_bytes or 0),
            causes=_causes(own.sent, step.sent, 1, names),
        )


def _unmeasured(step: MeasuredStep) -> str:
    return "the chosen plan was not run beside it" if step.ran else step.why_not()


def _chosen(evidence: Evidence, kind: MeasuredKind) -> MeasuredOption | None:
    """Returns the option that most occurrences of a kind have in the plan."""
    words = Counter(evidence.segments[at].splits for at in kind.segments)
    return kind.option(words.most_common(1)[0][0]) if words else None


def _strategies(
    kind: MeasuredKind, place: int, chosen: MeasuredOption, names: Sequence[str]
) -> Iterator[Alternative]:
    block, count = kind.blocks[place], len(kind.segments)
    several = "s" if count > 1 else ""
    title = f"{seed_name(block.seeds[0])}, block {place} of segment{several} "
    group = title + segments_text(kind.segments)
    for number, strategy in enumerate(block.strategies):
        if number == chosen.combo[place]:
            continue
        best = next((one for one in kind.options if one.combo[place] == number), None)
        if best is None:
            why = "not measured: nothing suggested that it could be faster"
            why = why if kind.finished else "not measured: the budget ended before"
            yield Alternative(group, strategy, why_not=why)
            continue
        yield Alternative(
            group,
            strategy,
            difference_s=count * (best.time_s - chosen.time_s),
            between=f"at best with {best.splits}" + (" (rough)" if best.rough else ""),
            compute_s=_difference(best.compute_s, chosen.compute_s, count),
            communication_s=_difference(best.communication_s, chosen.communication_s, count),
            memory_bytes=count * (best.memory_bytes - chosen.memory_bytes),
            causes=_causes(chosen.sent, best.sent, count, names),
        )


def _difference(one: float | None, other: float | None, count: int) -> float | None:
    return None if one is None or other is None else count * (one - other)


def _causes(
    mine: Sequence[Sent] | None, theirs: Sequence[Sent] | None, count: int, names: Sequence[str]
) -> tuple[str, ...] | None:
    """Returns the collectives by which two programs differ, in words."""
    if mine is None or theirs is None:
        return None
    before = {(row.kind, row.axes, row.source): row for row in mine}
    after = {(row.kind, row.axes, row.source): row for row in theirs}
    keys = dict.fromkeys([*after, *before])

    def size(rows: dict[tuple[str, tuple[int, ...] | None, str], Sent], key: object) -> float:
        return next((count * row.bytes for at, row in rows.items() if at == key), 0.0)

    changed = [(size(after, key) - size(before, key), key) for key in keys]
    changed = [(by, key) for by, key in changed if abs(by) >= 1]
    changed.sort(key=lambda one: -abs(one[0]))
    said = []
    for by, (kind, axes, source) in changed[:MOST_CAUSES]:
        over = "part of the mesh" if axes is None else "+".join(names[axis] for axis in axes)
        line = "" if source == UNKNOWN else f" for {source}"
        sign = "+" if by > 0 else "\N{MINUS SIGN}"
        said.append(f"{sign}{bytes_text(abs(by))} of {kind} over {over}{line}")
    return tuple(said)


def signed_time(seconds: float) -> str:
    """Returns `+1.20 ms`."""
    return f"{'+' if seconds >= 0 else chr(0x2212)}{time_text(abs(seconds))}"


def signed_bytes(count: int) -> str:
    """Returns `+1.2 MiB`."""
    return f"{'+' if count >= 0 else chr(0x2212)}{bytes_text(abs(count))}"
