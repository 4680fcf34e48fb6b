"""Bad input gets one sentence with the field and the way out."""

import pytest

from cfp import models
from cfp.errors import CfpError


@pytest.mark.parametrize(
    ("name", "size", "overrides", "message"),
    [
        ("t5", "tiny", {}, "There is no model `t5`: use one of bert, gpt, moe, llama."),
        ("gpt", "7b", {}, "gpt has no size `7b`: use one of tiny, small, 2.6b, 6.7b."),
        ("gpt", "tiny", {"depth": 3}, "`depth` is not a model option: use one of layers, hidden,"),
        ("gpt", "tiny", {"model": "bert"}, "`model` is not a model option"),
        ("gpt", "tiny", {"layers": 0}, "`layers` must be a positive whole number, not 0."),
        ("gpt", "tiny", {"hidden": "64"}, "`hidden` must be a positive whole number, not '64'."),
        ("gpt", "tiny", {"vocab": 4}, "`vocab` must be at least 8, not 4"),
        ("gpt", "tiny", {"hidden": 60}, "`hidden` (60) must be divisible by `heads` (8)"),
        ("llama", "tiny", {"kv_heads": 3}, "`heads` (8) must be divisible by `kv_heads` (3)"),
        ("gpt", "tiny", {"kv_heads": 4}, "`kv_heads` (4) must equal `heads` (8) in gpt"),
        ("llama", "tiny", {"heads": 64}, "rotary positions need an even head size"),
        ("moe", "tiny", {"layers": 3}, "`layers` (3) must be even in moe"),
        ("moe", "tiny", {"experts": 1}, "`experts` must be at least 2"),
        ("gpt", "tiny", {"experts": 8}, "`experts` is for moe: leave it out for gpt."),
        ("gpt", "tiny", {"dtype": "int8"}, "`dtype` must be float32 or bfloat16, not 'int8'."),
        ("gpt", "tiny", {"qkv_layout": "x"}, "`qkv_layout` must be head_major or stacked"),
        ("llama", "tiny", {"qkv_layout": "stacked"}, "leave it out for llama."),
        ("llama", "tiny", {"dropout": 0.1}, "`dropout` must be 0 in llama"),
        ("gpt", "tiny", {"dropout": 1.0}, "`dropout` must be at least 0 and below 1, not 1.0."),
        ("gpt", "tiny", {"clip_norm": 0.0}, "`clip_norm` must be above 0, not 0.0"),
        ("gpt", "tiny", {"learning_rate": 0.0}, "`learning_rate` must be above 0, not 0.0."),
    ],
)
def test_message(name, size, overrides, message):
    with pytest.raises(CfpError) as error:
        models.config(name, size, **overrides)
    assert message in str(error.value)
