"""Random steps: the blocks' space is a subset, and gaps are as rare as documented."""

import pytest
from bench.theorem.__main__ import Row, main, probe

SAMPLE = range(60)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.name: row for row in probe(SAMPLE)}  # raises where a smaller space wins


def test_no_smaller_space_has_a_better_plan(rows):
    for row in rows.values():
        assert len(row.pairs) == len(SAMPLE)
        assert all(better <= worse for better, worse in row.pairs)


@pytest.mark.parametrize("parts", [2, 4])
def test_gaps_are_rare(rows, parts):
    """bench/results/theorem.md has the shares over 1000 steps; here with room to spare."""
    most = {
        ("activations", "deliver"): 0.05,
        ("activations and weights", "deliver"): 0.15,
    }
    for (price, reading), share in most.items():
        row = rows[f"P = {parts}, {price}: blocks ({reading})"]
        assert len(row.seeds) <= share * len(SAMPLE)


def test_the_bench_writes_its_table(tmp_path, capsys):
    main(["--seeds", "2", "--out", str(tmp_path / "theorem.md")])
    text = (tmp_path / "theorem.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert "| P = 2, activations: blocks (deliver) | 2 |" in text
