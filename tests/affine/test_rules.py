"""Every rule against the real lax operation: equal where exact, never missing an element."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import families_indexing as _  # noqa: F401 (registers its families)
from .families import FAMILIES, cases
from .oracle import assert_cases

SLOW_TO_COMPILE = {"random_numbers", "patch_gradients", "pool_gradient"}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_rule_equals_brute_force(name: str) -> None:
    slow = name in SLOW_TO_COMPILE

    @settings(
        max_examples=1 if slow else 3,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(cases(name), min_size=2 if slow else 8, max_size=2 if slow else 8))
    def check(batch):
        assert_cases(batch)

    check()
