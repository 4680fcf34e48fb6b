"""What memory is for, against sums by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfp.analysis import analyze
from cfp.layouts.state import State
from cfp.profile.measure.costs import cost_of
from cfp.profile.measure.measurement import Measurement
from cfp.profile.measure.memory import (
    MemoryUse,
    held_bytes,
    memory_use,
    one_of_two,
    started_sums,
)
from cfp.profile.programs.find_kinds import find_kinds
from cfp.profile.programs.kinds import Kind, Option
from cfp.profile.programs.lower import lower
from cfp.profile.runners.job import Memory
from cfp.segments.extract import MEASURED_ITERATIONS
from tests.profile.cases import (
    CASES,
    accumulating,
    kinds,
    mesh,
    model,
    named,
    random_option,
    shape,
    two_products,
)

F32 = 4
A, B = 16 * 32 * F32, 32 * 24 * F32  # the parameters
X = 64 * 16 * F32  # the data, kept for a's gradient
HIDDEN, MASK = 64 * 32 * F32, 64 * 32  # relu's result, kept for b's gradient, and where it is > 0
OUT = 64 * 24 * F32  # twice the result: the derivative of its square
TOTAL = Memory(argument_bytes=10**8, output_bytes=1000, temporary_bytes=500, aliased_bytes=700)
RUN = Measurement("key", "name", (1.0,), memory=TOTAL)


def use(kind: Kind, option: Option, memory: Memory = TOTAL, cut: int = 0) -> MemoryUse:
    return memory_use(kind.extracts[cut], kind.layouts(option)[cut], memory)


def parts(found: MemoryUse) -> tuple[int, int, int, int]:
    kept = found.gradient_bytes, found.activation_bytes
    return found.parameter_bytes, found.state_bytes, *kept


@pytest.mark.parametrize(
    ("names", "state", "expected"),
    [
        # data parallel: parameters whole, rows split
        (("batch", "batch"), State.BLOCK, (A + B, A + B, A + B, (X + HIDDEN + MASK + OUT) // 4)),
        (
            ("batch", "batch"),
            State.ZERO1,
            (A + B, (A + B) // 4, A + B, (X + HIDDEN + MASK + OUT) // 4),
        ),
        (  # both passes read b, so that it stays gathered; the backward pass does not read a
            ("batch", "batch"),
            State.FSDP,
            ((A + B) // 4, (A + B) // 4, (A + B) // 4, (X + HIDDEN + MASK + OUT) // 4 + B),
        ),
        # columns: parameters split, the data whole
        (
            ("output features", "output features"),
            State.BLOCK,
            ((A + B) // 4, (A + B) // 4, (A + B) // 4, X + (HIDDEN + MASK + OUT) // 4),
        ),
        # megatron: the second product sums, its result is whole
        (
            ("output features", "input features"),
            State.BLOCK,
            ((A + B) // 4, (A + B) // 4, (A + B) // 4, X + (HIDDEN + MASK) // 4 + OUT),
        ),
    ],
)
def test_two_products(
    names: tuple[str, str], state: State, expected: tuple[int, int, int, int]
) -> None:
    (kind,) = kinds(two_products())
    assert parts(use(kind, named(kind, *names, state=state))) == expected


def test_a_backward_loop_gathers_parameters_itself() -> None:
    """FSDP keeps what data parallel keeps: each of the two loops gathers a layer at a time."""
    loop = kinds(model("llama", layers=7, scan=True))[1]
    combo = tuple(choices.index((0,)) for choices in loop.strategies)
    both = (use(loop, Option(combo, state)) for state in (State.BLOCK, State.FSDP))
    assert len({found.activation_bytes for found in both}) == 1


def test_on_two_axes() -> None:
    (kind,) = kinds(two_products((2, 2)))
    option = named(kind, "batch+output features", "batch+input features")
    found = use(kind, option)
    assert found.parameter_bytes == found.state_bytes == (A + B) // 2
    assert found.activation_bytes == X // 2 + (HIDDEN + MASK) // 4 + OUT // 2
    split = use(kind, Option(option.combo, State.FSDP))
    assert split.parameter_bytes == split.state_bytes == (A + B) // 4


def test_scratch_is_the_rest() -> None:
    (kind,) = kinds(two_products())
    option = named(kind, "batch", "batch")
    found = use(kind, option)
    assert found.total_bytes == 10**8 + 1000 + 500 - 700  # all its results are fed back
    assert found.kept_bytes == sum(parts(found))
    assert found.scratch_bytes == found.total_bytes - found.kept_bytes
    assert use(kind, option, Memory(10, 0, 0, 0)).scratch_bytes == 0


def test_of_a_loop_every_iteration_keeps_its_activations() -> None:
    option = Option((0, 0, 0, 0))
    few, many = (
        use(kinds(model("llama", layers=n, scan=True, checkpoint=True))[1], option) for n in (2, 7)
    )
    assert many.activation_bytes * 2 == few.activation_bytes * 7
    assert few.activation_bytes > 0
    assert many.parameter_bytes == few.parameter_bytes
    assert many.scratch_bytes == few.scratch_bytes, "one iteration's"


def test_a_loop_needs_as_much_as_its_layers_unrolled() -> None:
    """The slices that an iteration reads are part of the stacks, and stacked gradients are there
    until the update."""
    loop = kinds(model("llama", layers=7, scan=True, checkpoint=True))[1]
    option = Option((0, 0, 0, 0))
    runs = [Measurement("key", "name", (1.0,), memory=TOTAL)] * 2
    found = cost_of(loop, loop.layouts(option), runs).memory
    unrolled = use(kinds(model("llama", layers=7))[1], option)
    assert found.parameter_bytes == 7 * unrolled.parameter_bytes
    assert found.state_bytes == 7 * unrolled.state_bytes
    assert found.gradient_bytes == 7 * unrolled.gradient_bytes


def test_micro_batches_share_what_one_needs() -> None:
    """Parameters, their state and the sums of their gradients are there once, activations those of
    one micro-batch, however many there are."""
    few, many = (
        [
            cost_of(kind, kind.layouts(option), [RUN] * len(kind.extracts)).memory
            for kind in kinds(accumulating(count))
            for option in [Option((0,) * len(kind.strategies))]
        ]
        for count in (2, 5)
    )
    assert [parts(use) for use in few] == [parts(use) for use in many]
    table, layers, head = 128 * 48 * F32, 2 * (2 * 48 * 192 + 2 * 48) * F32, 48 * 128 * F32
    assert [use.parameter_bytes for use in few] == [table, layers, head]
    assert [use.state_bytes for use in few] == [2 * table, 2 * layers, 2 * head]
    assert [use.gradient_bytes for use in few] == [table, layers, head]


def test_a_loop_needs_what_one_iteration_and_its_carries_need() -> None:
    """Stacked slices of the other iterations, results and sums of gradients, which the update's
    program has, are taken off the compiler's total."""
    body = kinds(accumulating())[2].extracts[0]
    layouts = kinds(accumulating())[2].layouts(Option((0,)))[0]
    found = memory_use(body, layouts, Memory(10**6, 10**6, 500, 0))
    assert body.iterations == MEASURED_ITERATIONS
    hidden, tokens, head = 8 * 15 * 48 * 2 // 4, 8 * 15 * 4 // 4, 48 * 128 * F32
    others = (body.iterations - 1) * (hidden + tokens)  # activations and labels
    assert found.total_bytes == 10**6 + 500 - others - head


def test_a_loop_needs_no_more_temporaries_than_an_iteration_makes() -> None:
    """However many copies the compiler has of what the measured loop carries and stacks."""
    body = kinds(accumulating())[1].extracts[1]
    layouts = kinds(accumulating())[1].layouts(Option((0, 0)))[1]
    few, many = (memory_use(body, layouts, Memory(10**6, 10**6, size, 0)) for size in (500, 10**9))
    converted = 2 * (2 * 48 * 192 + 2 * 48) * F32  # stacked gradients, before they are added
    assert many.total_bytes - few.total_bytes == converted - 500


def test_masks_lie_as_they_are_read_and_broadcasts_are_not_kept() -> None:
    """Nothing says how dropout's masks lie, and a causal mask is made anew wherever it is read."""

    def step(w: Any, key: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            hidden = x @ w
            kept = jax.random.bernoulli(key, 0.5, hidden.shape)
            below = jnp.arange(64)[:, None] <= jnp.arange(32)[None]
            return jnp.where(kept, jnp.where(below, hidden, 0.0), 0.0).sum()

        return w - jax.grad(loss)(w)

    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    (kind,) = find_kinds(analyze(step, shape(16, 32), key, shape(64, 16), mesh_shape=(4,)))
    found = use(kind, named(kind, "batch"))
    masks = 2 * 64 * 32 // 4
    assert X // 4 < found.activation_bytes <= X // 4 + masks


def test_what_a_table_s_gradient_starts_with_is_there_from_the_start() -> None:
    """It is whole where the batch is split, and each device has its columns of it where the output
    features are."""

    def step(table: Any, ids: Any) -> Any:
        return table - jax.grad(lambda table: (table[ids] ** 2).sum())(table)

    ids = jax.ShapeDtypeStruct((64,), jnp.dtype("int32"))
    (kind,) = find_kinds(analyze(step, shape(128, 32), ids, mesh_shape=(4,)))
    graph = kind.extracts[0].graph
    assert [graph.values[value].shape for value in started_sums(graph)] == [(128, 32)]
    for name, table in (("batch", 128 * 32 * F32), ("output features", 128 * 32 * F32 // 4)):
        option = named(kind, name)
        held = held_bytes(kind.extracts[0], kind.layouts(option)[0])
        assert use(kind, option).activation_bytes == held + table


def test_no_part_is_more_than_is_left() -> None:
    (kind,) = kinds(two_products())
    option = named(kind, "batch", "batch")
    found = use(kind, option, Memory(2 * (A + B) + 100, 0, 0, 0))
    assert parts(found) == (A + B, A + B, 0, 100)
    assert found.scratch_bytes == 0


def test_around_a_loop() -> None:
    """What is kept around it is not there while it is differentiated."""
    update, body = MemoryUse(1, 2, 3, 4, 50, 60, 7), MemoryUse(10, 20, 30, 40, 5, 106)
    assert update.around(body) == MemoryUse(11, 22, 33, 40, 54, 106, 7)
    assert body.around(update) == MemoryUse(11, 22, 33, 4, 50, 106, 7)


def test_the_temporaries_of_a_loop_s_update_are_told_apart() -> None:
    kind = kinds(accumulating())[1]
    option = Option((0, 0))
    body, _, update = (use(kind, option, TOTAL, cut) for cut in range(3))
    assert update.update_bytes == TOTAL.temporary_bytes
    assert body.update_bytes == 0
    found = cost_of(kind, kind.layouts(option), [RUN] * 3).memory
    assert found.update_bytes == update.update_bytes


sizes = st.integers(0, 1000)


@settings(deadline=None, database=None, derandomize=True)
@given(sizes, sizes, sizes, sizes, sizes, st.booleans())
def test_one_of_two(
    p: int, s: int, gradients: int, activations: int, rest: int, known: bool
) -> None:
    """Two in a row, as the timeline of a backward pass has them, give back the one."""
    needs = gradients + activations + rest
    one = MemoryUse(p, s, gradients, activations, rest, p + s + needs)
    larger = max(gradients, activations)
    total = 2 * (p + s) + needs + larger
    both = MemoryUse(2 * p, 2 * s, 2 * gradients, 2 * activations, 0, total)
    assert one_of_two(both, one if known else None) == one


def test_what_two_need_more_than_one_is_kept() -> None:
    """Though the graph says that it is 8: the compiler did not keep all of it."""
    both = MemoryUse(0, 0, 4, 16, 0, 26)
    alone = MemoryUse(0, 0, 2, 8, 11, 21)
    assert one_of_two(both, alone) == MemoryUse(0, 0, 2, 5, 14, 21)


@pytest.mark.parametrize("name", ["gpt", "bert", "llama"])
def test_splitting_state_saves_memory(name: str) -> None:
    for kind in kinds(CASES[name]()):
        combo = random_option(kind, 1).combo
        last = len(kind.extracts) - 1
        block, zero1, fsdp = (use(kind, Option(combo, state), cut=last) for state in State)
        assert fsdp.parameter_bytes <= block.parameter_bytes == zero1.parameter_bytes
        assert zero1.state_bytes <= block.state_bytes
        assert fsdp.state_bytes <= block.state_bytes
        graph, parameters = kind.extracts[last].graph, kind.extracts[last].blocks.parameters
        whole = sum(graph.values[v].size_bytes for v in parameters)
        assert whole // 4 <= fsdp.parameter_bytes <= whole


def test_the_compiler_agrees() -> None:
    """Arguments are parameters, state and the data; results replace the first two."""
    (kind,) = kinds(two_products())
    (cut,) = kind.extracts
    option = named(kind, "batch", "batch", state=State.ZERO1)
    (layouts,) = kind.layouts(option)
    exported = jax.export.deserialize(bytearray(lower(cut, layouts, mesh((4,)))))
    shapes = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(
            exported.in_avals, exported.in_shardings_jax(mesh((4,))), strict=True
        )
    ]
    stats = jax.jit(exported.call).lower(*shapes).compile().memory_analysis()
    found = use(kind, option)
    expected = found.parameter_bytes + found.state_bytes + X // 4
    assert stats.argument_size_in_bytes == expected
