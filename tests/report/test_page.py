"""The page about a plan: whole, well formed, small, and nothing in it is taken for markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import cfp
from cfp.plan import Plan
from cfp.plan.evidence import Evidence, Links
from cfp.plan.fields import Fields
from cfp.planning.scaling import Scaled
from cfp.profile.measure.measurement import Provenance
from cfp.report import render_page
from cfp.report.page import as_json
from cfp.report.page.strip import fold, strip_of
from tests.report.llama import LAYERS, make_plan
from tests.report.test_evidence import EVIDENCE, planned

VOID = {"meta", "br", "input"}
MOST_BYTES = 3_000_000  # a page that one can send by mail
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u2028"


class Reader(HTMLParser):
    """Checks that every tag is closed, and keeps the text outside scripts and the tags seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parse(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def text_of(page: str) -> str:
    return " ".join(" ".join(parse(page).text).split())


@pytest.fixture(scope="module")
def llama() -> str:
    return render_page(make_plan())


def test_it_says_what_the_plan_is_and_why() -> None:
    plan = planned()
    text = text_of(render_page(plan))
    assert "How to split this step over 4 devices" in text
    for segment in EVIDENCE.segments:
        assert segment.splits in text
    for step in (*EVIDENCE.steps[1:], *EVIDENCE.confirmed[1:]):
        assert step.name in text
    for tensor in plan.arguments:
        assert tensor.path in text
    assert f"seed {EVIDENCE.seed}" in text
    assert "segment 0: batch does not run: the worker crashed: Check failed" in text


def test_a_large_model_makes_a_page_that_one_can_send(llama: str) -> None:
    assert len(llama.encode()) < MOST_BYTES
    text = text_of(llama)
    assert "\N{MULTIPLICATION SIGN}32" in text
    for layer in range(LAYERS):
        assert text.count(f"['layers'][{layer}]['up']") == 3, "a parameter and its two moments"
    assert "Whole on every device although they could be split: state.params['tokens']" in text
    assert "cfp plan llama --size 7b --batch 16 --mesh 8 --memory-limit" in text


def test_it_names_nothing_outside(llama: str) -> None:
    for tag, attributes in parse(llama).tags:
        for name in ("src", "href", "data", "action", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    assert "@import" not in llama.partition("</style>")[0]
    assert "default-src 'none'" in llama, "a browser would refuse to load what slipped through"


def test_the_times_shown_add_up_to_the_prediction() -> None:
    plan = planned()
    assert plan.predicted is not None
    table = render_page(plan).partition('id="segments"')[2].partition("</table>")[0]
    shown = re.findall(r'<td>[^<]*</td><td class="n">([\d.]+) (ms|us)</td>', table)
    shown_s = [float(value) * {"ms": 1e-3, "us": 1e-6}[unit] for value, unit in shown]
    assert len(shown_s) == 5
    assert sum(shown_s) == pytest.approx(plan.predicted.time_s, abs=5e-5)


def evil_plan() -> Plan:
    """A plan in which every text that comes from the user's step tries to be markup."""
    plan = make_plan()
    evidence = plan.evidence
    assert evidence is not None
    assert plan.saved_collectives is not None
    first = plan.saved_collectives[0]
    kind = evidence.kinds[1]
    blocks = tuple(replace(b, seeds=(EVIL,), ended_by=(EVIL,)) for b in kind.blocks)
    return replace(
        plan,
        name=EVIL,
        notes=(EVIL,),
        arguments=(replace(plan.arguments[0], path=EVIL), *plan.arguments[1:]),
        segments=tuple(
            replace(s, blocks=tuple(replace(b, seed=EVIL) for b in s.blocks)) for s in plan.segments
        ),
        saved_collectives=(
            replace(first, origins=(replace(first.origins[0], source=EVIL),)),
            *plan.saved_collectives[1:],
        ),
        evidence=replace(
            evidence,
            kinds=(evidence.kinds[0], replace(kind, name=EVIL, blocks=blocks), evidence.kinds[2]),
            confirmed=tuple(
                replace(step, name=EVIL) if step.name == "fsdp" else step
                for step in evidence.confirmed
            ),
        ),
    )


def test_nothing_of_the_users_is_taken_for_markup(llama: str) -> None:
    """Neither as text nor as an attribute, nor in the data of the scripts."""
    page = render_page(evil_plan())
    tags = parse(page).tags
    assert not [tag for tag, _ in tags if tag == "img"]
    count = [tag for tag, _ in parse(llama).tags].count("script")
    assert [tag for tag, _ in tags].count("script") == count
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert text_of(page).count("</script><script>alert(1)</script>") > 5, "it is shown as it is"
    assert "alert(1)</script>" not in page


def test_json_in_a_script_is_the_same_json() -> None:
    value = {"a": [EVIL, None, 1.5], EVIL: "\u2029"}
    text = str(as_json(value))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_template_has_a_page_that_says_what_is_not_known() -> None:
    text = text_of(render_page(replace(planned(), evidence=None, predicted=None)))
    assert "Nothing was measured for this plan" in text
    assert "The measured options are not in this plan" in text
    assert "No full step was run" in text


def test_a_plan_of_before_has_a_page_too() -> None:
    """It does not say which options were measured, where the time went, or what steps sent."""
    document = json.loads(json.dumps(EVIDENCE.to_json()))
    for name in ("kinds", "spent", "missing", "flops"):
        del document[name]
    for step in (*document["steps"], *document["confirmed"]):
        del step["sent"]
    evidence = Evidence.from_fields(Fields("plan.json", document))
    text = text_of(render_page(replace(planned(), evidence=evidence)))
    assert "This plan is of an older cfp, which did not keep the measured options" in text
    assert "It is not recorded in this plan" in text
    assert "megatron" in text


def test_a_mesh_that_was_not_there() -> None:
    """Communication comes from links: the page never says that it was measured."""
    links = Links((("x", "h200_nvlink"),), 0.02, 1)
    confirmed = tuple(replace(s, provenance=Provenance.REPLAYED) for s in EVIDENCE.confirmed)
    evidence = replace(EVIDENCE, links=links, confirmed=confirmed)
    text = text_of(render_page(replace(planned(), evidence=evidence)))
    assert "Predicted against replayed" in text
    assert "communication replayed, not measured: 1 stood in for all devices" in text
    assert "h200_nvlink" in text


def test_plans_of_other_numbers_of_devices() -> None:
    rows = [
        Scaled(4, (4,), 0.4, Provenance.MEASURED, 100.0, None, 2**20, 1.0, True),
        Scaled(8, (8,), 0.3, Provenance.MEASURED, 133.3, None, 2**20, 0.67, False),
        Scaled(8, (2, 4), 0.25, Provenance.MEASURED, 160.0, None, 2**20, 0.8, True),
    ]
    page = render_page(planned(), rows)
    assert "How many devices" in text_of(page)
    assert "8 2x4, best 250.00 ms measured 160" in text_of(page)
    assert '"chart-scaling"' in page
    assert "How many devices" not in text_of(render_page(planned()))


def test_the_plan_file_holds_all_that_the_page_shows(llama: str, tmp_path: Path) -> None:
    plan = make_plan()
    plan.save(tmp_path / "plan.json")
    with pytest.warns(cfp.PlanWarning, match="made elsewhere"):
        again = cfp.load(tmp_path / "plan.json", mesh=plan.mesh)
    assert again.evidence == plan.evidence
    assert text_of(render_page(again)) == text_of(llama)


def test_what_repeats_is_folded() -> None:
    assert fold("") == []
    assert fold("abbbcdcdcdc") == [(0, 1, 1), (1, 1, 3), (4, 2, 3), (10, 1, 1)]
    for keys in ("aabaab", "abcabcabd", "aaaa", "abcdefghij"):
        runs = fold(keys)
        assert "".join(keys[at : at + period] * count for at, period, count in runs) == keys
    strip = strip_of(make_plan())
    assert [(f.count, [s.at for s in f.segments]) for f in strip] == [
        (1, ["0"]),
        (LAYERS, ["1-32"]),
        (1, ["33"]),
    ]
