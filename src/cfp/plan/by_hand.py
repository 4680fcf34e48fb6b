"""What a plan does inside the step, in words and as one would write it in JAX by hand.

Shardings of arguments and results say nothing of what is computed again, nor of split streams:

    keep           `jax.checkpoint` around the segment, with the policy of the level (`POLICIES`)
    split stream   `jax.lax.with_sharding_constraint` on the block's sums, whose rows are split
                   along the axes that split the batch, and along those of the stream

It is made of what a plan file holds, so that a plan says the same before and after it is saved.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cfp.blocks.words import SplitName, split_stream
from cfp.plan.choice import BlockChoice, SegmentChoice, alike, segments_text
from cfp.segments.keep import Keep

WIDTH = 100  # characters of a line
FIRST = "Inside the step the plan also does what shardings of arguments do not say. By hand it is:"
POLICIES = {
    Keep.ALL: "segment = segment  # leave out its own jax.checkpoint",
    Keep.CONTRACTIONS: "segment = jax.checkpoint("
    "segment, policy=jax.checkpoint_policies.dots_saveable)",
    Keep.INPUTS: "segment = jax.checkpoint(segment)",
}
KEPT = {
    Keep.ALL: "keeps everything for its backward pass, also what the step computes again",
    Keep.CONTRACTIONS: "keeps what comes in and the results of products, convolutions and lookups, "
    "and computes the rest again in its backward pass",
    Keep.INPUTS: "keeps what comes in, and computes the rest again in its backward pass",
}
SPLIT = "lie split by rows until the next product reads them"
ROWS = "Dim 0 is taken for the batch. Along an axis that does not divide it, split the sequence."


def by_hand(segments: Sequence[SegmentChoice], axes: Sequence[str]) -> str:
    """Returns it as a comment of Python; empty where shardings say everything."""
    said: list[str] = []
    streams = False
    for group in alike(segments):
        choice, places = segments[group[0]], segments_text(group)
        one = len(group) == 1
        if choice.keep is not Keep.AS_WRITTEN:
            who = f"Segment {places} (it" if one else f"Each of segments {places} (the first"
            text = f"{who} starts with {choice.blocks[0].seed}) {KEPT[choice.keep]}:"
            said += _comment(text, POLICIES[choice.keep])
        for block in choice.blocks:
            rows = _rows(block, axes)
            if rows:
                streams = True
                where = f"In segment {places}" if one else f"In each of segments {places}"
                seed = block.seed if one else f"{block.seed} (so in the first)"
                text = f"{where}, the sums of {seed} {SPLIT}:"
                said += _comment(text, _constraint(rows))
    if not said:
        return ""
    last = _comment(ROWS) if streams else []
    return "\n".join([*_comment(FIRST), "#", *said, *last]) + "\n"


def _rows(block: BlockChoice, axes: Sequence[str]) -> tuple[str, ...]:
    """Returns the axes that the rows of a split stream are split along; none where it is not."""
    named = dict(zip(axes, block.splits, strict=True))
    if not any(name is not None and _is_stream(name) for name in named.values()):
        return ()
    return tuple(
        axis
        for axis, name in named.items()
        if name is not None and (_is_stream(name) or name == SplitName.BATCH.value)
    )


def _is_stream(name: str) -> bool:
    return name.endswith(split_stream(""))


def _constraint(rows: tuple[str, ...]) -> str:
    spec = repr(rows[0]) if len(rows) == 1 else repr(rows)
    return f"stream = jax.lax.with_sharding_constraint(stream, NamedSharding(mesh, P({spec})))"


def _comment(text: str, code: str | None = None) -> list[str]:
    lines = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in lines] + ([] if code is None else [f"#     {code}"])
