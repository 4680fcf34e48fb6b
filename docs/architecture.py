"""Writes docs/architecture.md: one value of a small step, as every stage prints it.

    python -m docs.architecture          # from the root of the repository

`tests/test_architecture.py` compares the page with what this prints today. Nothing is measured
here: times are the counts of each option at made-up rates, so that the page is the same everywhere.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from docs.small_step import step
from tests.planning.invented import invented_profile
from tests.profile.cases import kinds

from cfp.analysis import analyze
from cfp.plan import Plan
from cfp.plan.file import plan_to_json
from cfp.planning.proposals import Proposals
from cfp.profile import Option
from cfp.profile.explore.counts import count_option
from cfp.profile.programs.kinds import Kind
from cfp.trace import Graph

PAGE = Path(__file__).with_suffix(".md")
PATH = "layers[2]['up']"  # the argument that the page follows
WIDTH, HIDDEN, ROWS = 16, 64, 32
# seconds for a byte sent, a collective, a FLOP and a byte written: made up, of a slow network
RATES_S = (1e-7, 2e-5, 1e-9, 1e-9)


ROOMS = (
    "trace",
    "affine",
    "blocks",
    "layouts",
    "segments",
    "profile",
    "profile.programs",
    "profile.explore",
    "profile.measure",
    "profile.runners",
    "links",
    "calibration",
    "search",
    "export",
    "plan",
    "planning",
    "templates",
    "cluster",
    "models",
    "training",
    "report",
    "cli",
)
TEMPLATE = """\
<!-- Written by `python -m docs.architecture`; tests/test_architecture.py compares it. -->
# Architecture

CFP turns a training step into a plan in six stages. Every stage is a room (a folder of
`src/cfp`), takes the frozen value of the stage before it and returns its own, and imports only
the rooms before it. This page follows one value, `{path}`, from the step to the plan file, and
shows what each stage prints of it (`show()`). The words are those of the glossary in
[CONTRIBUTING.md](../CONTRIBUTING.md#glossary). `src/cfp/planner.py` has the stages in order, on
one screen.

## The step

The user's function, on a mesh of two devices along one axis, `x`:

```python
{step}
```

There are three layers, `up` is [16, 64], `down` is [64, 16], and the batch has 32 rows.

## 1. trace: the step becomes a graph

A graph is a flat list of equations over numbered values, forward, backward and update. The lines
that read or make `%{value}`, which is `{path}`:

```
{graph}
```

`affine` says, for every equation, which elements of a result need which elements of an operand.
The map of the first product above, its result on the left and its operands on the right, one
letter per factor (`+` marks what is summed away):

```
{map}
```

## 2. blocks: equations that stay split without communication

The product that reads `{path}` is the seed of block {block_number}. The block may be split in
three ways, and ends where an operation does not keep one of them. Splitting the *output features*
splits dim 1 of the weight.

```
{block}
```

## 3. segments: blocks that repeat

Blocks with the same fingerprint repeat. Six blocks make four segments of three kinds; `{path}` is
in segment {segment}, which is of kind {kind}. Kind {kind} occurs twice and is measured once.

```
{segments}
```

A kind is measured as a program of its own: its forward, backward and update equations, with the
activation and the cotangent that come in as arguments. There the weight is renumbered:

```
{program}
```

Every occurrence of the kind has a correspondence with this program, found by walking both outwards
from their contractions. What the renumbered weight is in the step:

```
{places}
```

## 4. profile: what every option costs

An option is a strategy for every block of a kind, a state, and what is kept for the backward
pass. `layouts` carries it to every tensor of the program. Under the option *{option}*:

```
{layouts}
```

The program is compiled and run on the devices with these layouts, and so are the other options of
the kind, and every resharding between kinds. (On this page the times are made up, so that it is
the same on every machine.)

```
{costs}
```

## 5. search: one option per segment

The search composes the costs of segments and reshardings, and finds the fastest choice that fits
in memory:

```
{chosen}
```

## 6. plan: the choice as shardings

The plan carries the layouts of every segment over these correspondences to the step, and has a
sharding for every argument, result and constrained tensor. The best few plans run as full steps
before one is returned. What `plan.show()` says of the blocks:

```
{plan}
```

In the plan file the weight that we followed has its own line under `arguments`, which `cfp.load`
reads:

```
{file}
```

## The rooms

Each sentence is the room's own docstring, which goes on with what its files do.

{rooms}

| beside them | |
|---|---|
| `planner.py` | `cfp.plan`: the stages in order |
| `jit.py` | `cfp.jit`: the plan found on the first call |
| `analysis.py` | `cfp.analyze`: the first three stages, which need no devices |
| `bench/` | every figure of the evaluation, one file each |
| `tests/` | mirrors `src/cfp`, folder by folder |
"""


def render(mesh: jax.sharding.Mesh) -> str:
    """Returns the page; the mesh has one axis of two devices."""
    args = _arguments()
    analysis = analyze(step, *args, mesh_shape=mesh.devices.shape)
    graph, blocks = analysis.graph, analysis.grouping
    value = graph.inputs[graph.input_paths.index(PATH)]
    reader = next(e for e in graph.equations if value in e.inputs)
    block = blocks.home[reader.index]
    segment = next(s for s in analysis.segments if block in s.blocks)
    kinds_found, names = kinds(analysis), mesh.axis_names
    times_s = {one.index: _times(one) for one in kinds_found}
    profile = invented_profile(analysis, times_s=times_s)
    proposals = Proposals(step, analysis, mesh, profile, pins={}, pinned={})
    (best,) = proposals.best(None, 1)
    option = best.options[segment.index]
    here = kinds_found[segment.kind]
    sections = {
        "rooms": _rooms(),
        "step": inspect.getsource(step),
        "graph": _lines_about(graph.show(), value),
        "map": reader.op.map.show() if reader.op.map else "",
        "block": blocks.blocks[block].show(graph),
        "segments": analysis.segmentation.show(graph, blocks),
        "program": _lines_about(
            here.extracts[0].graph.show(), here.extracts[0].values.index(value)
        ),
        "places": _places(here, here.extracts[0].inputs.index(value), graph),
        "layouts": here.layouts(option)[0].show(here.extracts[0].graph, names),
        "costs": profile.segments[segment.kind].show(),
        "chosen": proposals.show(best.point),
        "plan": "Blocks" + best.plan.show().partition("Blocks")[2],
        "file": _file(best.plan),
    }
    return TEMPLATE.format(
        path=PATH,
        value=value,
        block_number=block,
        segment=segment.index,
        kind=segment.kind,
        option=here.show(option),
        **{name: text.rstrip("\n") for name, text in sections.items()},
    )


def _arguments() -> tuple[Any, ...]:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layers = [{"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)} for _ in range(3)]
    return layers, {"x": array(ROWS, WIDTH), "y": array(ROWS, WIDTH)}


def _times(kind: Kind) -> dict[Option, float]:
    """Returns a made-up time for every way to split the blocks of a kind."""
    combos = itertools.product(*(range(len(choices)) for choices in kind.strategies))
    options = [Option(combo) for combo in combos]
    return {option: float(count_option(kind, option) @ RATES_S) for option in options}


def _rooms() -> str:
    """Returns a row for every room, with the first sentence of its docstring."""
    rows = ["| room | what it is for |", "|---|---|"]
    for name in ROOMS:
        text = inspect.getdoc(importlib.import_module(f"cfp.{name}")) or ""
        sentence = " ".join(text.partition("\n\n")[0].split())
        rows.append(f"| `{name.replace('.', '/')}` | {sentence} |")
    return "\n".join(rows)


def _places(kind: Kind, argument: int, graph: Graph) -> str:
    """Returns which value of the step an argument of the kind's program is, by occurrence."""
    number = kind.extracts[0].graph.inputs[argument]
    found = ((place.segment, place.arguments[0][argument]) for place in kind.places)
    return "\n".join(
        f"segment {segment}: %{number} is %{value}, {graph.describe(value)}"
        for segment, value in found
        if value is not None
    )


def _lines_about(text: str, value: int) -> str:
    """Returns the lines that name a value, with `...` for those between."""
    lines: list[str] = []
    for line in text.splitlines():
        if re.search(rf"%{value}\b", line):
            lines.append(line)
        elif lines[-1:] != ["..."]:
            lines.append("...")
    return "\n".join(lines)


def _file(plan: Plan) -> str:
    document = plan_to_json(plan)
    return f'"{PATH}": ' + json.dumps(document["arguments"][PATH])


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    PAGE.write_text(render(jax.sharding.Mesh(jax.devices("cpu")[:2], ("x",))))


if __name__ == "__main__":
    main()
