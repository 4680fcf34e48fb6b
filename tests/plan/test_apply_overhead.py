"""`plan.jit(step)` compiles to what shardings written by hand compile to. Never timed here."""

import pytest
from bench.apply_overhead import compile_step, hand_written, make_mesh, planned, ratio

from cfp.models import config, make_step, num_params

CONFIG = config("gpt", "tiny")
TOKENS = CONFIG.batch * CONFIG.seq
# Data parallel sums all gradients and the loss. Megatron sums activations twice per layer and pass
# and at both ends, and three numbers per token for the softmax over the vocabulary.
MOVED_BYTES = {
    "data_parallel": 4 * (num_params(CONFIG) + 1),
    "megatron": 4 * TOKENS * ((4 * CONFIG.layers + 2) * CONFIG.hidden + 3),
}


@pytest.mark.parametrize("name", MOVED_BYTES)
def test_the_plan_is_the_hand_written_program(name: str) -> None:
    step, args = make_step(CONFIG, abstract=True)
    mesh = make_mesh(4)
    hand, plan = (
        compile_step(write(name, step, args, mesh), args, mesh) for write in (hand_written, planned)
    )
    assert {kind: moved for kind, (_, moved) in hand.moved.items()} == {
        "all-reduce": MOVED_BYTES[name]
    }
    assert plan.moved == hand.moved
    assert plan.sizes == hand.sizes, f"by hand:\n{hand.show()}\nby plan.jit:\n{plan.show()}"
    assert all(found.exact_times for found in (*hand.collectives, *plan.collectives))
    assert (plan.flops, plan.memory_bytes) == (hand.flops, hand.memory_bytes)


def test_ratios_are_taken_within_rounds() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0]
    slower = ratio([1.1 * t for t in drift], drift)
    assert (slower.value, slower.low, slower.high) == pytest.approx((1.1, 1.1, 1.1))
    assert not slower.tie
    assert ratio([1.01 * t for t in drift], drift).tie
    assert ratio([0.8, 1.8, 4.4, 8.8, 17.0], drift).tie
