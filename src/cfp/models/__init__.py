"""CFP comes with four models: BERT, GPT, GShard MoE and LLaMA-2, each with an AdamW training
step.

>>> step, args = make_step(config("gpt", "small", layers=2))
>>> state, metrics = jax.jit(step)(*args)

They are ordinary JAX code over nested dicts, and know nothing of the rest of CFP.
"""

from cfp.models.config import NAMES, Config
from cfp.models.data import synthetic_batch
from cfp.models.sizes import SIZES, config
from cfp.models.train import TrainState, init_state, make_step, num_params

__all__ = [
    "NAMES",
    "SIZES",
    "Config",
    "TrainState",
    "config",
    "init_state",
    "make_step",
    "num_params",
    "synthetic_batch",
]
