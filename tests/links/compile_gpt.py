"""Compiles the step of `gpt_h200.hlo`, a small GPT over 2x4 H200s, without a GPU or a driver:

    pip install "jax[cuda12]==0.10.2"
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 XLA_FLAGS=--xla_gpu_autotune_level=0 \
        python tests/links/compile_gpt.py h200.txtpb > tests/links/gpt_h200.hlo

where `h200.txtpb` is XLA's description of that GPU (xla/backends/gpu/target_config/specs). What XLA
prints is kept but for metadata, settings of kernels, and all but the results of what is inside
fusions and reductions.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, HIDDEN, FFN, SEQ, BATCH, VOCAB, HEADS = 2, 512, 2048, 128, 16, 1024, 8
HEAD = HIDDEN // HEADS
WEIGHTS: dict[str, tuple[tuple[int, ...], tuple[str | None, ...]]] = {
    **dict.fromkeys("qkv", ((HIDDEN, HEADS, HEAD), ("data", "model"))),
    "o": ((HEADS, HEAD, HIDDEN), ("model", None, "data")),
    "up": ((HIDDEN, FFN), ("data", "model")),
    "down": ((FFN, HIDDEN), ("model", "data")),
}


def norm(x: Any) -> Any:
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)).astype(jnp.bfloat16)


def layer(x: Any, w: Any) -> Any:
    hidden = norm(x)
    q, k, v = (jnp.einsum("btd,dhe->bthe", hidden, w[name]) for name in "qkv")
    scores = jnp.einsum("bthe,bshe->bhts", q, k).astype(jnp.float32) / 8
    causal = jnp.tril(jnp.ones((SEQ, SEQ), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(jnp.bfloat16)
    x = x + jnp.einsum("bthe,hed->btd", jnp.einsum("bhts,bshe->bthe", weights, v), w["o"])
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def loss(params: Any, tokens: Any) -> Any:
    x = params["emb"][tokens]
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
    logits = (norm(x) @ params["emb"].T).astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1))


def step(params: Any, tokens: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - (1e-3 * g).astype(p.dtype), params, gradients), value


def compiled(target: str) -> str:
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="1x8x1", topology="1x8x1", target_config=target
    )
    mesh = Mesh(np.array(topology.devices).reshape(2, 4), ("data", "model"))
    shape = jax.ShapeDtypeStruct
    params = {
        "emb": shape((VOCAB, HIDDEN), jnp.bfloat16),
        "layers": {n: shape((LAYERS, *s), jnp.bfloat16) for n, (s, _) in WEIGHTS.items()},
    }
    lie = {
        "emb": NamedSharding(mesh, P("model", "data")),
        "layers": {n: NamedSharding(mesh, P(None, *a)) for n, (_, a) in WEIGHTS.items()},
    }
    jitted = jax.jit(
        step,
        in_shardings=(lie, NamedSharding(mesh, P("data"))),
        out_shardings=(lie, NamedSharding(mesh, P())),
        donate_argnums=0,
    )
    return jitted.lower(params, shape((BATCH, SEQ), jnp.int32)).compile().as_text()


def shortened(text: str) -> str:
    """Leaves out what a schedule does not depend on, and what would be most of the file."""
    text = re.sub(r"(?ms)^FileNames.*?(?=^%|^ENTRY)", "", text)
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    inner = set(re.findall(r"(?:fusion\(.*calls|to_apply)=%([\w.\-]+)", text))
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if header := re.match(r"%([\w.\-]+) \(", line):
            inside = header[1] in inner
            line = f"%{header[1]} () -> () {{" if inside else line
        elif inside and line != "}" and not line.startswith("  ROOT"):
            continue
        else:
            inside = inside and line != "}"
        if not re.search(r'"is_sync"|known_trip_count', line):
            line = re.sub(r", backend_config=\{.*\}$", "", line)
        lines.append(re.sub(r',"force_earliest_schedule".*\}$', "}", line))
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines))


if __name__ == "__main__":
    sys.stdout.write(shortened(compiled(Path(sys.argv[1]).read_text())))
