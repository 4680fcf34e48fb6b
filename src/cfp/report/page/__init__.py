"""A plan and why it was chosen, as one page that opens anywhere: it holds all that it needs, and
asks the network for nothing.

    strip        the step's segments and blocks in order, folded
    options      every measured option, for the page's script to draw and filter
    why_not      every alternative beside what was chosen
    arguments    every argument by path, and what is whole on every device
    provenance   where the numbers come from
    charts       the charts, drawn by Bokeh
    figures      what all charts have in common
    assets/      the template, its style and its scripts

Whatever comes from the user's step is text: the template escapes it, and in the data for the
scripts `<`, `>` and `&` are written as JSON escapes, so that nothing in it ends a script.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from cfp.blocks import MEANING
from cfp.memory_size import bytes_text
from cfp.plan import Plan
from cfp.plan.choice import segments_text
from cfp.plan.plan import known_collectives
from cfp.planning.scaling import Scaled
from cfp.profile.measure.measurement import Provenance
from cfp.report.collectives import fold_collectives
from cfp.report.evidence import segment_rows
from cfp.report.page.arguments import arguments_of
from cfp.report.page.options import options_data
from cfp.report.page.provenance import provenance_of
from cfp.report.page.strip import plain_split, strip_of, strip_words
from cfp.report.page.why_not import alternatives, signed_bytes, signed_time
from cfp.report.scaling import scaling_rows
from cfp.report.steps import (
    all_steps,
    how_known,
    measured_steps,
    own_name,
    prediction_error,
    step_rows,
)
from cfp.report.text import mesh_text, part_text, shape_text, time_text
from cfp.report.verdict import speedups, verdict_lines
from cfp.writing import write_whole

SCRIPTS = ("tables.js", "strip.js", "charts.js", "options.js")


def write_page(plan: Plan, path: str | os.PathLike[str], scaling: Sequence[Scaled] = ()) -> None:
    """Writes the page about a plan; `scaling` are plans of other numbers of devices, to show beside
    it."""
    write_whole(path, render_page(plan, scaling), "report")


def report_path(plan_path: str) -> str:
    """Returns where the page goes: the one about `plans/a.json` is `plans/a.html`, so that no page
    overwrites another plan's."""
    path = Path(plan_path)
    return str(path.with_suffix(".html") if path.suffix == ".json" else f"{path}.html")


def render_page(plan: Plan, scaling: Sequence[Scaled] = ()) -> str:
    """Returns the page as HTML."""
    from cfp.report.page.charts import bokeh_script, charts_of  # imports take a second

    evidence = plan.evidence
    faster = [] if evidence is None else speedups(evidence)
    strip = strip_of(plan)
    charts = charts_of(plan, faster, scaling)
    return (
        _environment()
        .get_template("page.html")
        .render(
            plan=plan,
            evidence=evidence,
            mesh=mesh_text(plan),
            verdict=verdict_lines(plan),
            speedups=faster,
            strip=strip,
            words=strip_words(strip),
            costs=[] if evidence is None else segment_rows(evidence),
            measured=[]
            if evidence is None
            else [(title, step_rows(steps)) for title, steps in measured_steps(evidence)],
            steps=[]
            if evidence is None
            else [(own_name(s, evidence), s, prediction_error(s)) for s in all_steps(evidence)],
            alternatives=alternatives(plan),
            arguments=arguments_of(plan),
            collectives=_collectives(plan),
            provenance=provenance_of(plan),
            how=Provenance.MEASURED if evidence is None else how_known(evidence),
            scaling=scaling_rows(scaling),
            charts=charts,
            data=as_json({"charts": charts, "kinds": options_data(plan)}),
            style=_asset("page.css"),
            bokeh=Markup(bokeh_script() if charts else ""),
            scripts=Markup("\n".join(map(_read, SCRIPTS))),
        )
    )


def as_json(value: Any) -> Markup:
    """Returns JSON that may stand inside a script element, whatever texts are in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def split_class(word: str) -> str:
    """Returns the class by which the style colours a split: `output-features`.

    >>> split_class("output features"), split_class("groups (2)"), split_class("what is this")
    ('output-features', 'groups', 'other')
    """
    plain = plain_split(word)
    return plain.replace(" ", "-") if plain in MEANING else "other"


def _collectives(plan: Plan) -> list[Any] | None:
    found = known_collectives(plan)
    return None if found is None else list(fold_collectives(plan, found))


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cfp.report.page", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        bytes=bytes_text,
        time=time_text,
        part=part_text,
        shape=shape_text,
        split_class=split_class,
        segments=segments_text,
        signed_time=signed_time,
        signed_bytes=signed_bytes,
    )
    return made


@functools.cache
def _read(name: str) -> str:
    return (resources.files("cfp.report.page") / "assets" / name).read_text(encoding="utf-8")


def _asset(name: str) -> Markup:
    return Markup(_read(name))
