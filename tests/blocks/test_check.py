"""The verifier sees what is wrong: each case breaks one thing in the blocks of an attention."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cfp.blocks import Block, Blocks, Strategy
from cfp.trace import Graph
from tests.blocks.check import check_blocks

from .cases import attention, build

Break = Callable[[Blocks], Blocks]


@pytest.fixture(scope="module")
def built() -> tuple[Graph, Blocks]:
    """Block 0 joins q, k and v; block 1 is the output projection."""
    return build(attention(4, 4), dict.fromkeys(("q", "k", "v", "out"), (16, 16)))


def change(blocks: Blocks, at: int, /, **fields: object) -> Blocks:
    changed = list(blocks.blocks)
    changed[at] = replace(changed[at], **fields)  # type: ignore[arg-type]
    return replace(blocks, blocks=tuple(changed))


def candidate(blocks: Blocks, **fields: object) -> Blocks:
    first, *rest = blocks.blocks[0].candidates
    return change(blocks, 0, candidates=(replace(first, **fields), *rest))  # type: ignore[arg-type]


def splits(blocks: Blocks, *dims: int | None) -> Blocks:
    last = max(blocks.blocks[0].splits)
    return change(blocks, 0, splits={**blocks.blocks[0].splits, last: dims})


def moved(blocks: Blocks, equation: int, to: int) -> Blocks:
    """One member moves to another block, with its home and splits left behind."""
    source = blocks.home[equation]
    kept = tuple(m for m in blocks.blocks[source].members if m != equation)
    blocks = change(blocks, source, members=kept)
    more = (*blocks.blocks[to].prologue, equation)
    return replace(change(blocks, to, prologue=more), home={**blocks.home, equation: to})


CASES: dict[str, tuple[str, Break]] = {
    "lost": ("is in no block", lambda b: change(b, 0, members=b.blocks[0].members[:-1])),
    "twice": (
        "is in block 0 and in block 1",
        lambda b: change(b, 1, prologue=(*b.blocks[1].prologue, b.blocks[0].members[-1])),
    ),
    "home": (
        "but its home is",
        lambda b: replace(b, home={**b.home, b.blocks[0].members[-1]: 1}),
    ),
    "order": ("of the later block 1", lambda b: moved(b, b.blocks[0].members[3], 1)),
    "placed only": (
        "contracts but is a member of no block",
        lambda b: change(
            b,
            1,
            members=b.blocks[1].members[1:],
            prologue=(*b.blocks[1].prologue, *b.blocks[1].seeds),
        ),
    ),
    "backward lost": ("is in 0 blocks", lambda b: change(b, 0, backward=b.blocks[0].backward[1:])),
    "backward twice": (
        "is in 2 blocks",
        lambda b: change(b, 1, backward=(*b.blocks[1].backward, b.blocks[0].backward[0])),
    ),
    "no seeds": ("are not all members", lambda b: change(b, 0, seeds=())),
    "not siblings": (
        "depends on another seed",
        lambda b: change(b, 0, seeds=(*b.blocks[0].seeds, b.blocks[0].members[-1])),
    ),
    "loop": ("is in loop 7", lambda b: change(b, 0, loop=7)),
    "extent": ("does not divide by 3", lambda b: candidate(b, extent=3)),
    "whole": ("extent 1", lambda b: candidate(b, extent=1)),
    "name": ("two candidates have one name", lambda b: candidate(b, name="input features")),
    "rank": ("which do not divide", lambda b: splits(b, 5, None, None)),
    "shared": ("two candidates split one dim", lambda b: splits(b, 0, 0, None)),
    "short": ("1 dims, 3 candidates", lambda b: splits(b, 0)),
    "position": ("stands at position", lambda b: change(b, 0, index=1)),
    "reads": ("says it reads", lambda b: change(b, 0, inputs_from=(1,))),
}


@pytest.mark.parametrize("case", CASES)
def test_breaks_are_seen(built: tuple[Graph, Blocks], case: str) -> None:
    graph, blocks = built
    check_blocks(graph, blocks)
    message, break_it = CASES[case]
    with pytest.raises(ValueError, match=message):
        check_blocks(graph, break_it(blocks))


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ((), "none or repeat"),
        (((0,), (0,)), "none or repeat"),
        (((0, 1),), "not one choice per axis"),
        (((None,),), "is replicated, but"),
    ],
)
def test_strategies_are_checked(
    built: tuple[Graph, Blocks],
    strategies: tuple[Strategy, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Block, "strategies", lambda self, mesh_shape: strategies)
    with pytest.raises(ValueError, match=message):
        check_blocks(*built)
