"""Composed maps and followed splits against brute force, on random chains and small DAGs."""

from dataclasses import replace
from math import prod

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfp.affine import Map, follow, identity

from .oracle import Case, agree, changed, divisors, map_of, poisoned, preserved, run
from .steps import PLAIN, Program, chains, graphs

FAST = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def start(program: Program) -> np.ndarray:
    return np.arange(2, 2 + prod(program.shape), dtype="float32").reshape(program.shape)


def truths(program: Program) -> list[np.ndarray]:
    """Returns, for every node, the matrix [its element, input element] of what changed, by
    numpy."""
    x = start(program)
    rows, where = poisoned([x], (np.nan,))
    return [changed([x], where, node)[0] for node in program.numpy(rows[0])]


def paths(program: Program) -> list[set[Map]]:
    """Returns, for every node, the maps from the input along all paths."""
    nodes = [{identity(program.shape)}]
    for step in program.steps:
        found: set[Map] = set()
        for place, node in enumerate(step.reads):
            between = step.op.between(step.operand(place), 0)
            found |= {m.then(between) for m in nodes[node]}
        nodes.append(found)
    return nodes


def step_truth(program: Program, at: int) -> np.ndarray:
    """What step `at` alone needs of the node it reads (a chain has one)."""
    return truths(Program(program.shapes[at], [replace(program.steps[at], reads=(0,))]))[1]


@settings(FAST, max_examples=600)
@given(chains())
def test_chains_equal_brute_force(program: Program) -> None:
    truth = truths(program)
    check_maps(program, truth)
    check_follow(program, truth)
    check_follow_backwards(program, truth)


@settings(FAST, max_examples=500)
@given(graphs())
def test_graphs_equal_the_union_over_paths(program: Program) -> None:
    check_maps(program, truths(program))


def check_maps(program: Program, truth: list[np.ndarray]) -> None:
    for node, (maps, true) in enumerate(zip(paths(program), truth, strict=True)):
        wrong = agree(maps, true, program.shapes[node], program.shape)
        assert wrong is None, f"node {node}: {wrong}"


def check_follow(program: Program, truth: list[np.ndarray]) -> None:
    """Each chunk of every tensor on the way depends on the same chunk of the source alone."""
    for dim, size in enumerate(program.shape):
        at, extent = dim, size
        for node, step in enumerate(program.steps, 1):
            op = step.op
            went = follow(op.sizes, op.operands[step.operand(0)], op.results[0], at, extent)
            if went is None:
                break
            at, extent = went
            for parts in divisors(extent):
                assert preserved(
                    truth[node], program.shape, dim, program.shapes[node], at, parts
                ), f"node {node}: dim {dim} to {at}, {parts} parts"


def check_follow_backwards(program: Program, truth: list[np.ndarray]) -> None:
    """The same from the last tensor to the first."""
    last = program.shapes[-1]
    for dim, size in enumerate(last):
        at, extent = dim, size
        for step in reversed(program.steps):
            op = step.op
            went = follow(op.sizes, op.results[0], op.operands[step.operand(0)], at, extent)
            if went is None:
                break
            at, extent = went
        else:
            for parts in divisors(extent):
                assert preserved(truth[-1], program.shape, at, last, dim, parts)


@settings(FAST, max_examples=600)
@given(chains(PLAIN))
def test_follow_is_complete(program: Program) -> None:
    """Where every tensor on the way can be split so that chunks stay apart, follow finds it.

    "On the way" matters: (6, 4) -> (4, 6) -> (6, 4) is the identity, but no dim of the middle
    tensor can be split in three so that a device finds all it needs on itself.
    """
    shapes = program.shapes
    each = [step_truth(program, at) for at in range(len(program.steps))]
    for dim, size in enumerate(program.shape):
        for parts in divisors(size):
            at, extent = dim, size
            for node, step in enumerate(program.steps):
                found = [
                    j
                    for j, n in enumerate(shapes[node + 1])
                    if n % parts == 0
                    and preserved(each[node], shapes[node], at, shapes[node + 1], j, parts)
                ]
                op = step.op
                went = follow(op.sizes, op.operands[step.operand(0)], op.results[0], at, extent)
                if not found:
                    assert went is None or went[1] % parts
                    break
                assert went is not None, (
                    f"node {node + 1}: {parts} parts of {at} survive in {found}"
                )
                assert found == [went[0]]
                at, extent = went
                assert extent % parts == 0, f"node {node + 1}: {parts} parts, but extent {extent}"


@settings(FAST, max_examples=8)
@given(st.lists(chains(), min_size=8, max_size=8))
def test_steps_mean_what_lax_means(programs: list[Program]) -> None:
    """numpy's steps, their params and the brute force agree with the real lax operations."""
    x = [
        np.arange(2, 2 + int(np.prod(p.shape)), dtype="float32").reshape(p.shape) for p in programs
    ]
    cases = [Case(p.jax, [v], poison=(np.nan,)) for p, v in zip(programs, x, strict=True)]
    cases = [case for case, p in zip(cases, programs, strict=True) if p.steps]
    run(cases)
    for case, program in zip(cases, [p for p in programs if p.steps], strict=True):
        for real, mine in zip(case.truth, truths(program)[1:], strict=True):
            np.testing.assert_array_equal(real[0], mine)
        eqns = jax.make_jaxpr(program.jax)(case.inputs[0]).eqns
        if len(eqns) == len(program.steps):  # lax leaves out what does nothing
            assert [map_of(eqn) for eqn in eqns] == [step.op for step in program.steps]
