"""Plans as files: JSON that a person can read, and that only ever becomes plain data.

    {"format": "cfp-plan", "version": 3, "name": ..., "mesh": {"data": 2, "model": 4},
     "target": {"name": "gpt", "options": {"layers": 2, ...}, "given": ["layers"]},
     "environment": {...}, "argument_names": ["state", "batch"],
     "arguments": {path: {"shape": [...], "dtype": ..., "spec": [null, "model"]}}, "results": {...},
     "segments": [{"at": [1, 2], "fingerprint": ..., "state": "block",
                   "blocks": [{"seed": ..., "split": {...}}]}],
     "values": [...], "collectives": [...], "predicted": {...}, "evidence": {...}}

`spec` is a PartitionSpec; `"held": true` marks an argument that a pin or the plan's own rule fixes.
`segments` groups the occurrences that are split alike. Every field is checked on the way in.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cfp.errors import CfpError, PlanWarning
from cfp.layouts import AnyMesh, Layout, auto_mesh, to_spec
from cfp.layouts.state import State
from cfp.plan.choice import BlockChoice, SegmentChoice, alike
from cfp.plan.collectives import Collective, Origin
from cfp.plan.environment import Environment
from cfp.plan.evidence import Evidence
from cfp.plan.fields import Fields, read_fields
from cfp.plan.measured_kinds import check_kinds
from cfp.plan.pins import layout_of
from cfp.plan.plan import Plan, PlannedValue, Predicted, known_collectives
from cfp.plan.target import target_of
from cfp.plan.tensor import PlannedTensor
from cfp.segments.keep import Keep
from cfp.writing import write_whole

FORMAT, VERSION = "cfp-plan", 4  # 4: fingerprints tell whether a block may split its stream
_DTYPE = re.compile(r"[a-z][a-z0-9_]*(<[a-z0-9_]+>)?")  # float32, float8_e4m3fn, key<fry>


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the plan as JSON; it is there whole or not at all."""
    write_whole(path, json.dumps(plan_to_json(plan), indent=1) + "\n", "plan")


def load(path: str | os.PathLike[str], *, mesh: AnyMesh) -> Plan:
    """Reads a plan for a mesh of the same axes and sizes. Warns where its environment differs."""
    auto_mesh(mesh)  # refuses what is no mesh
    document = read_document(path)
    wanted = document.mesh("mesh")
    found = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    if list(wanted.items()) != list(found.items()):
        raise CfpError(
            f"{path} is a plan for a mesh of {_mesh_text(wanted)}; this one is "
            f"{_mesh_text(found)}: use that mesh, or plan again for this one."
        )
    plan = _plan(document, mesh)
    differences = plan.environment.differences(Environment.of(mesh))
    if differences:
        warnings.warn(
            f"{path} was made elsewhere: {'; '.join(differences)}. What it computes stays right; "
            "what is fastest may have changed.",
            PlanWarning,
            stacklevel=2,
        )
    return plan


def read_document(path: str | os.PathLike[str]) -> Fields:
    """Returns the file's JSON, of a format and version we know."""
    document = read_fields(path)
    if document.data.get("format") != FORMAT:
        raise CfpError(
            f'{path} is not a plan of cfp: its `format` is not "{FORMAT}". Name a file that '
            "`cfp plan` or `cfp template` wrote."
        )
    version = document.integer("version")
    if version != VERSION:
        way = "Upgrade cfp" if version > VERSION else "Make the plan again"
        raise CfpError(
            f"{path} is a plan of version {version}; this cfp reads version {VERSION}. {way}."
        )
    return document


def plan_from_json(document: Mapping[str, Any], mesh: AnyMesh) -> Plan:
    """Returns the reverse of `plan_to_json`, on the same mesh."""
    return _plan(Fields("the plan", dict(document)), mesh)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns plain data, for `json.dumps`."""
    names = plan.mesh.axis_names
    collectives = known_collectives(plan)  # saving compiles nothing
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "notes": list(plan.notes),
        "target": None if plan.target is None else plan.target.to_json(),
        "mesh": dict(zip(names, plan.mesh_shape, strict=True)),
        "environment": plan.environment.to_json(),
        "sequence": plan.sequence,
        "predicted": None if plan.predicted is None else asdict(plan.predicted),
        "evidence": None if plan.evidence is None else plan.evidence.to_json(),
        "argument_names": list(plan.argument_names),
        "arguments": {t.path: _tensor_to_json(t, names) for t in plan.arguments},
        "results": {t.path: _tensor_to_json(t, names) for t in plan.results},
        "segments": _segments_to_json(plan),
        "values": [_value_to_json(value, names) for value in plan.values],
    }
    if collectives is not None:
        document["collectives"] = [asdict(collective) for collective in collectives]
    return document


def spec_to_json(layout: Layout, names: Sequence[str]) -> list[Any]:
    return [list(e) if isinstance(e, tuple) else e for e in to_spec(layout, names)]


def _tensor_to_json(tensor: PlannedTensor, names: Sequence[str]) -> dict[str, Any]:
    plain = {
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "spec": spec_to_json(tensor.layout, names),
    }
    return {**plain, "held": True} if tensor.held else plain


def _value_to_json(value: PlannedValue, names: Sequence[str]) -> dict[str, Any]:
    return {
        "equation": value.equation,
        "primitive": value.primitive,
        "result": value.result,
        "operand": value.operand,
        "shape": list(value.shape),
        "spec": spec_to_json(value.layout, names),
    }


def _segments_to_json(plan: Plan) -> list[dict[str, Any]]:
    names = plan.mesh.axis_names
    return [
        {
            "at": at,
            "fingerprint": plan.segments[at[0]].fingerprint,
            "state": state.value if (state := plan.segments[at[0]].state) else None,
            "keep": plan.segments[at[0]].keep.value,
            "blocks": [
                {"seed": block.seed, "split": dict(zip(names, block.splits, strict=True))}
                for block in plan.segments[at[0]].blocks
            ],
        }
        for at in alike(plan.segments)
    ]


def _plan(document: Fields, mesh: AnyMesh) -> Plan:
    environment = document.object("environment")
    predicted = document.optional("predicted")
    plan = Plan(
        name=document.text("name"),
        mesh=mesh,
        argument_names=tuple(document.texts("argument_names")),
        arguments=_tensors(document, "arguments", mesh),
        results=_tensors(document, "results", mesh),
        segments=_segments(document, mesh),
        values=tuple(_value(entry, mesh) for entry in document.objects("values")),
        sequence=document.flag("sequence"),
        environment=Environment(
            **{name: environment.text(name) for name in ENVIRONMENT_TEXTS},
            processes=environment.integer("processes"),
        ),
        notes=tuple(document.texts("notes")),
        predicted=None
        if predicted is None
        else Predicted(
            time_s=predicted.number("time_s"),
            compute_s=predicted.optional_number("compute_s"),
            communication_s=predicted.optional_number("communication_s"),
            memory_bytes=predicted.integer("memory_bytes"),
        ),
        evidence=_evidence(document),
        target=target_of(document),
        saved_collectives=tuple(_collective(c) for c in document.objects("collectives"))
        if document.has("collectives")
        else None,
    )
    if plan.evidence is not None:
        sizes = [len(segment.blocks) for segment in plan.segments][: len(plan.evidence.segments)]
        steps = (*plan.evidence.steps, *plan.evidence.confirmed)
        sent = [row for step in steps for row in step.sent or ()]
        check_kinds(document.where, plan.evidence.kinds, sizes, sent, len(plan.mesh_shape))
    return plan


def _evidence(document: Fields) -> Evidence | None:
    if not document.has("evidence"):  # a file of before there was any
        return None
    found = document.optional("evidence")
    return None if found is None else Evidence.from_fields(found)


ENVIRONMENT_TEXTS = ("cfp", "jax", "jaxlib", "platform", "device_kind")


def _tensors(document: Fields, name: str, mesh: AnyMesh) -> tuple[PlannedTensor, ...]:
    found: list[PlannedTensor] = []
    for path, entry in document.object(name).entries():
        shape = tuple(entry.integers("shape"))
        layout = layout_of(entry.spec("spec"), path, shape, mesh, f"{document.where}: `{path}`")
        held = entry.has("held") and entry.flag("held")
        dtype = entry.text("dtype")
        if _DTYPE.fullmatch(dtype) is None:
            raise entry.wrong("dtype", "a dtype such as float32")
        found.append(PlannedTensor(path, shape, dtype, layout, held))
    return tuple(found)


def _segments(document: Fields, mesh: AnyMesh) -> tuple[SegmentChoice, ...]:
    placed: dict[int, SegmentChoice] = {}
    for entry in document.objects("segments"):
        blocks: list[BlockChoice] = []
        for block in entry.objects("blocks"):
            split = block.object("split")
            names = tuple(split.optional_text(axis) for axis in mesh.axis_names)
            blocks.append(BlockChoice(block.text("seed"), names))
        fingerprint = entry.text("fingerprint")
        choice = SegmentChoice(fingerprint, tuple(blocks), _state(entry), _keep(entry))
        for at in entry.integers("at"):
            if at in placed:
                raise CfpError(f"{document.where}: segment {at} is listed twice.")
            placed[at] = choice
    if sorted(placed) != list(range(len(placed))):
        raise CfpError(f"{document.where}: segments are missing between 0 and {max(placed)}.")
    return tuple(placed[index] for index in range(len(placed)))


def _state(entry: Fields) -> State | None:
    """Returns how a segment's training state lies; null in a plan that was laid out as a whole."""
    word = entry.optional_text("state")
    try:
        return None if word is None else State(word)
    except ValueError:
        known = ", ".join(f'"{state.value}"' for state in State)
        raise entry.wrong("state", f"one of {known}, or null") from None


def _keep(entry: Fields) -> Keep:
    """Returns what a segment keeps for its backward pass; a file of before there was a choice keeps
    what the step does."""
    if not entry.has("keep"):
        return Keep.AS_WRITTEN
    try:
        return Keep(entry.text("keep"))
    except ValueError:
        known = ", ".join(f'"{keep.value}"' for keep in Keep)
        raise entry.wrong("keep", f"one of {known}") from None


def _value(entry: Fields, mesh: AnyMesh) -> PlannedValue:
    shape = tuple(entry.integers("shape"))
    equation = entry.integer("equation")
    who = f"{entry.where}: equation {equation}"
    return PlannedValue(
        equation=equation,
        primitive=entry.text("primitive"),
        result=entry.optional_integer("result"),
        operand=entry.optional_integer("operand"),
        shape=shape,
        layout=layout_of(entry.spec("spec"), f"equation {equation}", shape, mesh, who),
    )


def _collective(entry: Fields) -> Collective:
    origins = tuple(
        Origin(
            bytes=origin.integer("bytes"),
            shape=tuple(origin.integers("shape")),
            dtype=origin.text("dtype"),
            role=origin.text("role"),
            primitive=origin.text("primitive"),
            segment=origin.optional_integer("segment"),
            block=origin.optional_integer("block"),
            source=origin.text("source"),
        )
        for origin in entry.objects("origins")
    )
    return Collective(
        kind=entry.text("kind"),
        bytes=entry.integer("bytes"),
        axes=None if entry.is_null("axes") else tuple(entry.texts("axes")),
        times=entry.integer("times"),
        origins=origins,
    )


def _mesh_text(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in mesh.items())
