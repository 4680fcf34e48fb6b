"""Templates make the plans that people copy today, for any step. They are there to compare with,
and never among the candidates."""

from cfp.templates.alpa import alpa
from cfp.templates.data_parallel import data_parallel
from cfp.templates.megatron import megatron, megatron_sp
from cfp.templates.sharded_state import fsdp, zero1

__all__ = ["alpa", "data_parallel", "fsdp", "megatron", "megatron_sp", "zero1"]
