"""The distinct segments of a planned step as evidence: their blocks, and every option measured.

Plain values that a plan carries into its file, of bounded size: a kind has at most `MOST_OPTIONS`
options, the fastest and the best of every strategy, and says how many it leaves out. What options
send is kept of those that one asks about: the chosen ones and the best of every strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cfp.errors import CfpError
from cfp.plan.fields import Fields
from cfp.profile.measure.sent import Sent
from cfp.segments.keep import Keep

MOST_OPTIONS = 400  # of a kind: points that one can tell apart, in 100 kB of a plan file
MOST_SENT = 12  # rows of what an option or a step sends; the rest is one row for each collective
OTHER_LINES = "other lines"


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """A block of a kind in words. `seeds` say what it contracts and where in the user's code,
    `candidates` which dims may be split, with their `extents`; `strategies` are what one may
    choose, in the order that options number them."""

    seeds: tuple[str, ...]
    candidates: tuple[str, ...]
    extents: tuple[int, ...]
    ended_by: tuple[str, ...]
    strategies: tuple[str, ...]
    flops: float


@dataclass(frozen=True, slots=True)
class MeasuredOption:
    """One way to run a kind, as measured, for one occurrence: a strategy of every block by number,
    how training state lies, and what it keeps for the backward pass. One that is `rough` was given
    up early, as far behind the best. `sent` is None where it is not recorded."""

    splits: str
    combo: tuple[int, ...]
    state: str
    time_s: float
    spread_s: float
    compute_s: float | None
    communication_s: float | None
    memory_bytes: int
    rough: bool
    sent: tuple[Sent, ...] | None = None
    keep: str = Keep.AS_WRITTEN.value


@dataclass(frozen=True, slots=True)
class MeasuredKind:
    """A distinct segment. `segments` are its occurrences in the step; `ways` of the `space` ways to
    split its blocks ran. It is `finished` unless the budget ended before the choice was settled.
    `left_out` options were measured and are not listed here."""

    name: str
    segments: tuple[int, ...]
    times: int
    space: int
    ways: int
    finished: bool
    blocks: tuple[MeasuredBlock, ...]
    options: tuple[MeasuredOption, ...]
    left_out: int

    def option(self, splits: str) -> MeasuredOption | None:
        """Returns the option that says so of its splits; None where it is not listed."""
        return next((one for one in self.options if one.splits == splits), None)


def short_sent(rows: tuple[Sent, ...]) -> tuple[Sent, ...]:
    """Returns the largest rows, and one for each kind and axes of all others."""
    if len(rows) <= MOST_SENT:
        return rows
    rest: dict[tuple[str, tuple[int, ...] | None], Sent] = {}
    for row in rows[MOST_SENT:]:
        before = rest.get((row.kind, row.axes), Sent(row.kind, row.axes, OTHER_LINES, 0.0, 0.0))
        rest[row.kind, row.axes] = replace(
            before, times=before.times + row.times, bytes=before.bytes + row.bytes
        )
    return (*rows[:MOST_SENT], *rest.values())


def read_kinds(fields: Fields, name: str) -> tuple[MeasuredKind, ...]:
    return tuple(_kind(entry) for entry in fields.objects(name))


def read_sent(fields: Fields, name: str) -> tuple[Sent, ...] | None:
    if fields.is_null(name):
        return None
    return tuple(
        Sent(
            kind=entry.text("kind"),
            axes=None if entry.is_null("axes") else tuple(entry.integers("axes")),
            source=entry.text("source"),
            times=entry.number("times"),
            bytes=entry.number("bytes"),
        )
        for entry in fields.objects(name)
    )


def check_kinds(
    where: str, kinds: Sequence[MeasuredKind], sizes: Sequence[int], sent: Sequence[Sent], axes: int
) -> None:
    """Refuses kinds of other segments than the plan has, whose numbers of blocks are `sizes`; and
    what is sent over other than its mesh `axes`, by the kinds' options or by the steps (`sent`)."""
    for kind in kinds:
        if any(at >= len(sizes) or sizes[at] != len(kind.blocks) for at in kind.segments):
            raise CfpError(f"{where}: `kinds` are of other segments than the plan has.")
    options = (option for kind in kinds for option in kind.options)
    for row in (*sent, *(row for option in options for row in option.sent or ())):
        if any(axis >= axes for axis in row.axes or ()):
            raise CfpError(f"{where}: `sent` names mesh axes that the plan does not have.")


def _kind(entry: Fields) -> MeasuredKind:
    blocks = tuple(_block(block) for block in entry.objects("blocks"))
    sizes = [len(block.strategies) for block in blocks]
    options = tuple(_option(option) for option in entry.objects("options"))
    for option in options:
        within = len(option.combo) == len(sizes)
        if not (within and all(i < size for i, size in zip(option.combo, sizes, strict=True))):
            raise entry.wrong("options", "a list of options that number the blocks' strategies")
    return MeasuredKind(
        name=entry.text("name"),
        segments=tuple(entry.integers("segments")),
        times=entry.integer("times"),
        space=entry.integer("space"),
        ways=entry.integer("ways"),
        finished=entry.flag("finished"),
        blocks=blocks,
        options=options,
        left_out=entry.integer("left_out"),
    )


def _block(entry: Fields) -> MeasuredBlock:
    names, extents = entry.texts("candidates"), entry.integers("extents")
    if not entry.texts("seeds"):
        raise entry.wrong("seeds", "a list of one text or more")
    if len(names) != len(extents):
        raise entry.wrong("extents", "an extent for each candidate")
    return MeasuredBlock(
        seeds=tuple(entry.texts("seeds")),
        candidates=tuple(names),
        extents=tuple(extents),
        ended_by=tuple(entry.texts("ended_by")),
        strategies=tuple(entry.texts("strategies")),
        flops=entry.number("flops"),
    )


def _option(entry: Fields) -> MeasuredOption:
    return MeasuredOption(
        splits=entry.text("splits"),
        combo=tuple(entry.integers("combo")),
        state=entry.text("state"),
        time_s=entry.number("time_s"),
        spread_s=entry.number("spread_s"),
        compute_s=entry.optional_number("compute_s"),
        communication_s=entry.optional_number("communication_s"),
        memory_bytes=entry.integer("memory_bytes"),
        rough=entry.flag("rough"),
        sent=read_sent(entry, "sent"),
        keep=entry.text("keep"),
    )
