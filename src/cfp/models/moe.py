"""GShard mixture of experts: a GPT whose every second feed-forward layer is a set of experts.

A group is a batch row. Each of its S tokens goes to the two experts with the highest gates, as
long as these have room for it (capacity C). With G groups and E experts,

    combine [G,S,E,C]   the token's weight for slot c of expert e, 0 nearly everywhere
    dispatch            where combine is above 0
    y = combine . down(gelu(up(dispatch . x)))

and a loss is added that is 1 when the experts are used evenly. The second expert is always used
when it has room (GShard leaves it out at random).
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cfp.models.config import Config
from cfp.models.gpt import (
    attention_half,
    embed,
    init_attention,
    init_ends,
    next_token_loss,
)
from cfp.models.gpt import init_layer as init_dense
from cfp.models.gpt import layer as dense_layer
from cfp.models.layers import (
    Block,
    Params,
    dropout,
    fold,
    init_layers,
    layer_norm,
    norm_init,
    run_layers,
    weight,
)

AUX_WEIGHT = 0.01  # of the loss that balances experts, as in GShard and the Switch Transformer


def init(config: Config, key: Array) -> Params:
    layers, ends = jax.random.split(key)
    kinds = {
        "dense": functools.partial(init_dense, config),
        "moe": functools.partial(init_moe, config),
    }
    return {**init_ends(config, ends), "layers": init_layers(kinds, config, layers)}


def loss(
    params: Params, batch: Params, key: Array | None, config: Config
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean next-token cross entropy plus the load-balancing loss of the expert
    layers."""
    kinds: dict[str, Block] = {
        "dense": functools.partial(dense_layer, config),
        "moe": functools.partial(moe_layer, config),
    }
    x = embed(params, batch, key, config)
    x, balance = run_layers(kinds, params["layers"], x, key, config)
    aux = jnp.mean(jnp.stack(jax.tree.leaves(balance)))
    value = next_token_loss(params, x, batch, config) + AUX_WEIGHT * aux
    return value, {"loss": value, "aux_loss": aux}


def init_moe(config: Config, key: Array) -> Params:
    attention, gate, up, down = jax.random.split(key, 4)
    return {
        **init_attention(config, attention),
        "norm2": norm_init(config),
        "gate": weight(gate, config.hidden, config.experts),
        "up": weight(up, config.experts, config.hidden, config.ffn),
        "down": weight(down, config.experts, config.ffn, config.hidden),
    }


def moe_layer(config: Config, params: Params, x: Array, key: Array | None) -> tuple[Array, Array]:
    x = attention_half(config, params, x, key)
    y, balance = experts(config, params, layer_norm(x, params["norm2"]))
    return x + dropout(y, fold(key, 2), config.dropout), balance


def experts(config: Config, params: Params, x: Array) -> tuple[Array, Array]:
    """Returns the expert feed-forward on x [G,S,D], and how unevenly the experts are used."""
    combine, balance = top2_gating(x.astype(jnp.float32) @ params["gate"], config.capacity)
    dispatch = (combine > 0).astype(x.dtype)
    y = jnp.einsum("gsec,gsd->egcd", dispatch, x)
    y = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", y, params["up"].astype(x.dtype)))
    y = jnp.einsum("egcf,efd->egcd", y, params["down"].astype(x.dtype))
    return jnp.einsum("gsec,egcd->gsd", combine.astype(x.dtype), y), balance


def top2_gating(logits: Array, capacity: int) -> tuple[Array, Array]:
    """Returns combine weights [G,S,E,C] from gate logits [G,S,E], and the load-balancing loss.

    First choices take their expert's slots in order of position, second choices what is left. A
    token's two gates are scaled to sum to 1 before those that found no room are dropped.
    """
    num_experts = logits.shape[-1]
    gates = jax.nn.softmax(logits)
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), num_experts)
    others = jnp.where(first > 0, -jnp.inf, logits)
    second = jax.nn.one_hot(jnp.argmax(others, axis=-1), num_experts)

    used, likely = jnp.mean(first, axis=1), jnp.mean(gates, axis=1)
    balance = num_experts * jnp.mean(jnp.sum(used * likely, axis=-1))

    ahead = jnp.sum(first, axis=1, keepdims=True)
    slot1 = jnp.sum((jnp.cumsum(first, axis=1) - first) * first, axis=-1)
    slot2 = jnp.sum((jnp.cumsum(second, axis=1) - second + ahead) * second, axis=-1)
    gate1, gate2 = jnp.sum(gates * first, axis=-1), jnp.sum(gates * second, axis=-1)
    total = gate1 + gate2

    def place(choice: Array, slot: Array, gate: Array) -> Array:
        # The one-hot of a slot beyond the capacity is all zeros: the token is dropped.
        slots = jax.nn.one_hot(slot.astype(jnp.int32), capacity)
        return (gate / total)[..., None, None] * choice[..., None] * slots[..., None, :]

    return place(first, slot1, gate1) + place(second, slot2, gate2), balance
