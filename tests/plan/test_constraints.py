"""The compiled program is the plan's: shardings as asked, and every contraction's work split so."""

import re
from typing import Any

import jax
import pytest

from cfp.blocks.contraction import flops
from cfp.layouts import Constrain, sharding, to_spec
from cfp.plan import Plan
from cfp.trace.evaluate import equations_of, rebuild

from .steps import random_plan

CASES = [
    ("gpt", (2,), 0, {}),
    ("gpt", (4,), 1, {"scan": True}),
    ("bert", (2, 2), 2, {}),
    ("llama", (2, 4), 3, {}),
    ("moe", (2,), 4, {}),
    ("gpt", (2, 2), 5, {"checkpoint": True}),
]


def activation_shardings(plan: Plan) -> dict[int, Any]:
    """Value -> the sharding that the compiler gave a tensor the plan constrains."""
    bound = plan.bound
    assert bound is not None
    graph = bound.analysis.graph
    inside = {
        value
        for equation in graph.equations
        if equation.loop is not None
        for value in equation.outputs
    }
    kept = [value for value in bound.layouts.values if value not in inside]

    def step(flat: list[Any]) -> list[Any]:
        seen: dict[int, Any] = {}

        class Keep(Constrain):
            def value(self, value: int, array: Any) -> Any:
                seen[value] = Constrain.value(self, value, array)
                return seen[value]

        rebuild(graph, flat, Keep(plan.mesh, bound.layouts))
        return [seen[value] for value in kept]

    shardings = [sharding(plan.mesh, layout) for layout in bound.layouts.inputs]
    shapes = jax.tree.leaves(bound.args)
    compiled = jax.jit(step, in_shardings=(shardings,)).lower(shapes).compile()
    return dict(zip(kept, compiled.output_shardings, strict=True))


@pytest.mark.parametrize(("name", "mesh_shape", "seed", "options"), CASES)
def test_shardings_are_as_asked(
    name: str, mesh_shape: tuple[int, ...], seed: int, options: dict[str, Any]
) -> None:
    plan = random_plan(name, mesh_shape, seed, **options)
    bound = plan.bound
    assert bound is not None
    graph = bound.analysis.graph
    compiled = plan.compiled()
    given, _ = compiled.input_shardings
    for tensor, found in zip(plan.arguments, jax.tree.leaves(given), strict=True):
        wanted = sharding(plan.mesh, tensor.layout)
        assert found.is_equivalent_to(wanted, len(tensor.shape)), tensor.path
    found_results = jax.tree.leaves(compiled.output_shardings)
    for tensor, found in zip(plan.results, found_results, strict=True):
        wanted = sharding(plan.mesh, tensor.layout)
        assert found.is_equivalent_to(wanted, len(tensor.shape)), tensor.path
    checked = 0
    for value, found in activation_shardings(plan).items():
        wanted = sharding(plan.mesh, bound.layouts.values[value])
        rank = len(graph.values[value].shape)
        assert found.is_equivalent_to(wanted, rank), graph.describe(value)
        checked += 1
    assert checked > 5
    check_work(plan)


DOT = re.compile(r"= \w+\[([\d,]*)\]\S* dot\((.*?)\), .*?lhs_contracting_dims=\{([\d,]*)\}")
OP_NAME = re.compile(r'op_name="([^"]*)"')
SHAPE = re.compile(r"%([\w.\-]+) = \w+\[([\d,]*)\]")


def check_work(plan: Plan) -> None:
    """Each product does its share of the multiplications: the whole over the axes that split it."""
    bound = plan.bound
    assert bound is not None
    graph, layouts = bound.analysis.graph, bound.layouts
    found = dot_flops(plan.compiled().as_text())
    checked = 0
    for index, work in found.items():
        equation = graph.equations[index]
        if equation.primitive != "dot_general" or (index, 0) not in layouts.uses:
            continue
        told = [layouts.uses[index, 0], layouts.uses[index, 1]]
        told.append(layouts.values[equation.outputs[0]])  # replicated operands may be cut to fit
        axes = {axis for layout in told for axis, dim in enumerate(layout) if dim is not None}
        share = 1
        for axis in axes:
            share *= plan.mesh_shape[axis]
        expected = flops(equation.op) / share
        assert expected in work, (
            f"{graph.describe(equation.outputs[0])} does {work}, not {expected}: "
            f"{[to_spec(layouts.uses[index, i], plan.mesh.axis_names) for i in (0, 1)]}"
        )
        checked += 1
    assert checked > 3


def dot_flops(text: str) -> dict[int, set[float]]:
    """Equation -> the floating-point operations of the products it became on one device."""
    shapes: dict[str, list[int]] = {}
    for line in text.splitlines():
        if made := SHAPE.search(line):
            shapes[made[1]] = [int(size) for size in made[2].split(",") if size]
    found: dict[int, set[float]] = {}
    for line in text.splitlines():
        dot, name = DOT.search(line), OP_NAME.search(line)
        if not dot or not name or not equations_of(name[1]):
            continue
        out = [int(size) for size in dot[1].split(",") if size]
        lhs = shapes[re.findall(r"%([\w.\-]+)", dot[2])[0]]
        work = 2.0
        for size in out + [lhs[int(dim)] for dim in dot[3].split(",") if dim]:
            work *= size
        found.setdefault(equations_of(name[1])[0], set()).add(work)
    return found
