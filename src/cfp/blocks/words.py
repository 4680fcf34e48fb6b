"""What a split is called: words for people, derived from what the operands of a product are.

    a weight and an activation   batch, sequence, output features, input features, groups
    a lookup in a weight         batch, sequence, output features, table rows
    two of a sort                batch, groups, left dim, right dim, summed dim

Which side of the product the weight stands on does not matter. A weight is a parameter or made of
parameters; so is what does not depend on the data while the other operand does (frozen weights).
The same words stand in the terminal, the report, plan files and documents.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


class SplitName(enum.Enum):
    """The word for a split: what the candidate dim is to the contraction of the seed."""

    BATCH = "batch"
    SEQUENCE = "sequence"
    OUTPUT = "output features"
    INPUT = "input features"
    GROUPS = "groups"
    TABLE = "table rows"
    LEFT = "left dim"
    RIGHT = "right dim"
    SUMMED = "summed dim"


REPLICATED = "replicated"
SPLIT_STREAM = "split stream"

MEANING = {
    SplitName.BATCH.value: "the examples of the batch",
    SplitName.SEQUENCE.value: "another dim of the activation, as positions in a sequence",
    SplitName.OUTPUT.value: "the features that a weight makes",
    SplitName.INPUT.value: "the features that a weight reads (partial sums follow)",
    SplitName.GROUPS.value: "experts and other batch dims of a product",
    SplitName.TABLE.value: "the entries of a table that is looked up (partial sums follow)",
    SplitName.LEFT.value: "a dim that only the left one of two activations has",
    SplitName.RIGHT.value: "a dim that only the right one of two activations has",
    SplitName.SUMMED.value: "the dim that two activations are summed over (partial sums follow)",
    SPLIT_STREAM: "the partial sums are added into rows, which stay split until the next product",
    REPLICATED: "every device computes all of it",
}


@dataclass(frozen=True, slots=True)
class Operand:
    """What a contraction's operand is: a weight or an activation, and which dims are the batch.

    `batch` is None where the operand depends on the data and its dims could not be followed.
    """

    weight: bool
    batch: AbstractSet[int] | None


def name_split(
    operands: Sequence[Operand],
    dims: Sequence[int | None],
    *,
    sums: bool,
    lookup: bool,
    first: bool,
) -> SplitName:
    """Returns what a split of the operands in `dims` is called.

    An operand whose dim is None stays whole. `first` says that the dim is the operand's first one
    that may be split so.
    """
    split = [i for i, dim in enumerate(dims) if dim is not None]
    one_weight = sum(operand.weight for operand in operands) == 1
    if sums:
        if lookup:
            return SplitName.TABLE
        return SplitName.INPUT if one_weight else SplitName.SUMMED
    if any(dims[i] in (operands[i].batch or ()) for i in split):
        return SplitName.BATCH
    if len(split) > 1:
        return SplitName.GROUPS
    operand = operands[split[0]]
    if one_weight and operand.weight:
        return SplitName.OUTPUT
    if one_weight:
        # where the data could not be followed, an activation's first dim is taken for the batch
        return SplitName.BATCH if operand.batch is None and first else SplitName.SEQUENCE
    return SplitName.LEFT if split[0] == 0 else SplitName.RIGHT


def numbered(names: Sequence[SplitName]) -> list[str]:
    """Returns the words of the names, numbered where one occurs twice.

    >>> numbered([SplitName.BATCH, SplitName.GROUPS, SplitName.GROUPS])
    ['batch', 'groups (1)', 'groups (2)']
    """
    return [
        f"{name.value} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name.value
        for i, name in enumerate(names)
    ]


def split_stream(name: str) -> str:
    """Returns the word for a split whose partial sums go on split by rows.

    >>> split_stream("input features")
    'input features (split stream)'
    """
    return f"{name} ({SPLIT_STREAM})"


def legend(texts: Iterable[str]) -> str:
    """Returns one line that explains the words for splits that occur in the texts.

    >>> legend(["batch+groups (2), batch", "groups (1)"])
    'batch: the examples of the batch; groups: experts and other batch dims of a product.'
    """
    whole = "\n".join(texts)
    said = [f"{word}: {meaning}" for word, meaning in MEANING.items() if word in whole]
    return "; ".join(said) + "." if said else ""
