"""The step as a strip: its segments in order, each with its blocks, those that repeat folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cfp.blocks import MEANING, REPLICATED
from cfp.layouts.state import State
from cfp.plan import Plan
from cfp.plan.choice import segments_text
from cfp.plan.measured_kinds import MeasuredBlock, MeasuredKind
from cfp.report.plan import fold_seed
from cfp.segments.keep import Keep

LONGEST_PERIOD = 8  # segments that may repeat together: a search for more finds nothing readable
_LAST_KEY = re.compile(r"(?:\['([^']+)'\]|\.(\w+))(?:\[\d[\d,]*\])? at ")  # the weight of a seed

_PATH = re.compile(r" x ([^\s\[]+(?:\[\w+\])*?)(?:\[\d[\d,]*\]) at ")  # the same without keys


@dataclass(frozen=True, slots=True)
class StripBlock:
    """A block of the strip. `splits` are by mesh axis; `measured` has its candidates and why it
    ended, None where the plan does not say."""

    name: str
    seed: str
    splits: tuple[tuple[str, str], ...]
    measured: MeasuredBlock | None


@dataclass(frozen=True, slots=True)
class StripSegment:
    """Segments that are alike: `at` are their places, as text; `tags` say how their training state
    lies and what they keep, where that is not as the blocks and the step say."""

    name: str
    at: str
    tags: tuple[str, ...]
    blocks: tuple[StripBlock, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Segments that follow one another, `count` times in a row."""

    count: int
    segments: tuple[StripSegment, ...]


def strip_of(plan: Plan) -> list[Fold]:
    """Returns the plan's segments in order, folded."""
    kinds = () if plan.evidence is None else plan.evidence.kinds
    kind_of = {at: kind for kind in kinds for at in kind.segments}
    keys = [
        (one.fingerprint, one.state, one.keep, tuple(block.splits for block in one.blocks))
        for one in plan.segments
    ]
    folds = []
    for start, period, count in fold(keys):
        members = [range(start + i, start + period * count, period) for i in range(period)]
        found = tuple(_segment(plan, at, kind_of.get(at[0])) for at in members)
        folds.append(Fold(count, found))
    return folds


def strip_words(strip: Sequence[Fold]) -> dict[str, str]:
    """Returns the words for splits that the strip has, with their meanings."""
    used = {
        plain_split(split)
        for one in strip
        for segment in one.segments
        for block in segment.blocks
        for _, split in block.splits
    }
    return {word: means for word, means in MEANING.items() if word in used}


def plain_split(word: str) -> str:
    """Returns the word for a split without its number: `groups` for `groups (2)`."""
    return word.partition(" (")[0]


def fold(keys: Sequence[object]) -> list[tuple[int, int, int]]:
    """Returns (start, period, count) of runs that cover the keys in order: at every place the
    period that covers most, the shortest of several.

    >>> fold("abbbcdcdcdc")
    [(0, 1, 1), (1, 1, 3), (4, 2, 3), (10, 1, 1)]
    """
    runs, start = [], 0
    while start < len(keys):
        best = (1, 1)
        for period in range(1, LONGEST_PERIOD + 1):
            unit, count = keys[start : start + period], 1
            while keys[start + count * period : start + (count + 1) * period] == unit:
                count += 1
            if count > 1 and count * period > best[0] * best[1]:
                best = (period, count)
        runs.append((start, *best))
        start += best[0] * best[1]
    return runs


def _segment(plan: Plan, at: Sequence[int], kind: MeasuredKind | None) -> StripSegment:
    choice = plan.segments[at[0]]
    blocks = []
    for place, block in enumerate(choice.blocks):
        splits = zip(plan.mesh.axis_names, block.splits, strict=True)
        seed = fold_seed(block.seed) if len(at) > 1 else block.seed
        named = tuple((axis, split or REPLICATED) for axis, split in splits)
        measured = None if kind is None else kind.blocks[place]
        blocks.append(StripBlock(seed_name(block.seed), seed, named, measured))
    tags = [] if choice.state in (None, State.BLOCK) else [choice.state.value]
    if choice.keep is not Keep.AS_WRITTEN:
        tags.append(f"keeps {choice.keep.value}")
    name = "" if kind is None else kind.name
    return StripSegment(name, segments_text(at), tuple(tags), tuple(blocks))


def seed_name(seed: str) -> str:
    """Returns a short name for a seed.

    >>> seed_name("product [8,64] x params['layers'][0]['qkv'][64,192] at gpt.py:9 (f)")
    'qkv'
    >>> seed_name("product [8,64] x params[1][64,192] at gpt.py:9 (f)")
    'params[1]'
    >>> seed_name("product [8,4,32] x [8,4,32] at gpt.py:9 (f)")
    'product'
    """
    key, path = _LAST_KEY.search(seed), _PATH.search(seed)
    if key is not None:
        return key[1] or key[2]
    return seed.partition(" ")[0] if path is None else path[1]
