"""Link files: what is written can be read, and what is damaged is refused with one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from cfp.errors import CfpError
from cfp.links import Curve, FitError, Link, find_links, load_link, shipped_links, write_links
from cfp.links.file import MOST_BYTES, read_links, show_file
from cfp.links.link import REQUIRED, SHOWN_BYTES
from tests.links.drawn import links, straight

MESH = {"data": 2, "model": 8}


@given(links("one"), links("a b"))
def test_what_is_written_can_be_read(one: Link, other: Link) -> None:
    found = read_links(show_file([one, other], "two lines\nof comment"), "here")
    assert [*found] == ["one", "a b"]
    for link in (one, other):
        again = found[link.name]
        assert (again.scope, again.device, again.source) == (link.scope, link.device, link.source)
        for kind, curves in link.tables.items():
            for group, curve in curves.items():
                assert again.tables[kind][group].bytes == curve.bytes
                assert again.tables[kind][group].times_s == pytest.approx(curve.times_s, rel=1e-4)


def test_a_file_is_small_and_readable(golden: Callable[[str, str], None]) -> None:
    curves = {2: Curve((1024, 1048576), (10e-6, 123.4e-6))}
    error = FitError(0.0123, 0.3)
    tables = dict.fromkeys(REQUIRED, curves)
    link = Link("x", "network", "NVIDIA H200", 'by "hand"', error, tables)
    golden("link_file.toml", show_file([link], "A link."))


def test_every_shipped_link_says_where_it_is_from() -> None:
    assert {"a100_nvlink", "h200_nvlink", "l40s_pcie", "ib_400g"} <= {*shipped_links()}
    for name in shipped_links():
        link = load_link(name)
        assert link.name == name
        assert len(link.source) > 40
        assert (link.error is None) == ("not a fit" in link.source)
        assert link.error is None or link.error.median <= 0.1
        for kind in REQUIRED:
            for size in SHOWN_BYTES:
                assert 1e9 < size / link.time_s(kind, 4, size) < 1e12


def test_shipped_links_are_as_fast_as_their_hardware() -> None:
    """The measurements that they were fitted to decide: H200, 8 GPUs, all-reduce of 512 MiB."""
    assert load_link("h200_nvlink").time_s("all-reduce", 8, 2**29) == pytest.approx(
        2.03e-3, rel=0.05
    )
    slow, fast = (load_link(name).time_s("all-gather", 8, 2**28) for name in ("ib_200g", "ib_400g"))
    assert slow == pytest.approx(fast * 48 / 23.5, rel=0.02)


def test_links_are_named_in_the_order_of_the_axes_or_by_axis() -> None:
    by_order = find_links("ib_400g, h200_nvlink", MESH)
    by_axis = find_links({"model": "h200_nvlink", "data": "ib_400g"}, MESH)
    assert by_order == by_axis == find_links(["ib_400g", "h200_nvlink"], MESH)
    assert [link.name for link in by_order.links] == ["ib_400g", "h200_nvlink"]
    assert find_links({"x": straight("mine", 1.0, 1.0)}, {"x": 4}).links[0].name == "mine"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "ib_400g,h200_nvlnk",
            r"There is no link `h200_nvlnk`; did you mean `h200_nvlink`\? CFP has a100_nvlink, .*"
            r"ib_400g.*`cfp calibrate` writes one\)\.",
        ),
        ("xyz,ib_400g", r"There is no link `xyz`\. CFP has a100_nvlink"),
        (
            "h200_nvlink",
            r"`links` names h200_nvlink, and the mesh has 2 axes \(data, model\): name one link "
            r"for each, as h200_nvlink,h200_nvlink\.",
        ),
        ("ib_400g,ib_400g,ib_400g", r"name one link for each, 2 of them\."),
        ({"data": "ib_400g"}, r"`links` has none for model, and the mesh has 2 axes"),
        (
            {"data": "ib_400g", "model": "ib_400g", "x": "ib_400g"},
            r"`links` has one for x, and the mesh has 2 axes",
        ),
        ("ib_400g,nowhere.toml", r"Cannot read the links in nowhere\.toml: No such file"),
    ],
)
def test_what_does_not_name_links_is_refused(spec: str | dict[str, str], said: str) -> None:
    with pytest.raises(CfpError, match=said) as caught:
        find_links(spec, MESH)
    assert "\n" not in str(caught.value)


def test_one_file_may_have_a_link_for_every_axis(tmp_path: Path) -> None:
    path = str(tmp_path / "mine.toml")
    write_links(path, [straight("x", 1e-3, 1e9), straight("y", 1e-6, 1e9)])
    by_name = find_links(path, {"y": 2, "x": 2})
    assert [link.name for link in by_name.links] == ["y", "x"]
    by_order = find_links(path, MESH)
    assert [link.name for link in by_order.links] == ["x", "y"]
    flat = find_links(path, {"a": 1, "y": 4})
    assert [link.name for link in flat.links] == ["x", "y"]
    assert find_links(f"{path}:y", {"x": 8}).links[0].name == "y"
    assert load_link(f"{path}:x").name == "x"
    with pytest.raises(
        CfpError, match=r"has several links, `x`, `y`: write .*mine\.toml:x for one"
    ):
        load_link(path)
    with pytest.raises(CfpError, match=r"has no link `z`: it has `x`, `y`\."):
        load_link(f"{path}:z")
    with pytest.raises(CfpError, match=r"has links `x`, `y`, and the mesh has axes a, b, c: name"):
        find_links(path, {"a": 2, "b": 2, "c": 2})


def test_a_file_may_have_a_link_for_several_axes_together(tmp_path: Path) -> None:
    path = str(tmp_path / "mine.toml")
    both = straight("x+y", 5.0, 1e9)
    write_links(path, [straight("x", 1e-3, 1e9), straight("y", 1e-6, 1e9), both])
    for axes in ({"x": 2, "y": 2}, MESH):
        network = find_links(path, axes)
        assert network.time_s("all-gather", tuple(axes), 1) > 5 > 0.1
        assert network.time_s("all-gather", tuple(axes)[:1], 1) < 0.1
    assert find_links(path, {"y": 2, "z": 1}).together == {}


GOOD = show_file([straight("a", 1e-6, 1e9)])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "Invalid enum value 2"),
        ("format = 1", "format = 1\ncolour = 3", "unknown field `colour`"),
        ("format = 1", "format = ", "Invalid value"),
        ('scope = "node"', 'scope = "nodes"', "link `a`: Invalid enum value 'nodes'"),
        ('scope = "node"', "", "link `a`: Object missing required field `scope`"),
        ('scope = "node"', 'scope = "node"\nspeed = 3', "unknown field `speed`"),
        ('scope = "node"', 'scope = "node"\nerror = { median = nan, worst = 1.0 }', "errors are"),
        ('scope = "node"', 'scope = "node"\nerror = { median = 0.2, worst = 0.1 }', "errors are"),
        ("all-to-all.2]", "all-to-all.1]", "`a.all-to-all.1`: a group is a number of devices"),
        ("all-to-all.2]", "all-to-all.two]", "a group is a number of devices"),
        ("[link.a.all-to-all.2]", "[link.a.all-to-none.2]", "unknown field `all-to-none`"),
        ("[1, 1073741824]", "[1073741824, 1]", "the bytes must be positive and rise"),
        ("[1, 1073741824]", "[0, 1073741824]", "the bytes must be positive and rise"),
        ("[1, 1073741824]", "[1.5, 1073741824]", "Expected `int`, got `float`"),
        ("[1, 1073741824]", "[1, 2, 3]", "has 3 sizes and 2 times: it needs as many"),
        ("time_us = [1", "time_us = [-1", "a time is a number of microseconds above 0"),
        ("time_us = [1.001", "time_us = [nan", "a time is a number of microseconds above 0"),
        ("time_us = [1.001", "time_us = [inf", "a time is a number of microseconds above 0"),
        ("time_us = [1.001", "time_us = [9e9", "the times must not fall while the bytes rise"),
        ("time_us = [1.001", 'time_us = ["1"', "Expected `float`, got `str`"),
    ],
)
def test_a_damaged_file_is_refused_with_one_sentence(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(CfpError, match=re.escape(said)) as caught:
        read_links(GOOD.replace(old, new), "mine.toml")
    assert str(caught.value).startswith("mine.toml is no link file: ")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_link_files(tmp_path: Path) -> None:
    with pytest.raises(CfpError, match=r"link `a` has no times of all-gather"):
        read_links(re.sub(r"\[link.a.all-gather.2\]\n.*\n.*\n", "", GOOD), "mine.toml")
    with pytest.raises(CfpError, match=r"mine.toml has no links: `cfp calibrate` writes some\."):
        read_links("format = 1\n[link]\n", "mine.toml")
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CfpError, match=r"is no link file: it is not text\."):
        load_link(str(path))
    path.write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(CfpError, match=r"it has more than 1048576 bytes\."):
        load_link(str(path))
