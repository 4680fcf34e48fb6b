"""Records `loop_h200.hlo.gz` and `loop_h200.xplane.pb.gz` on one H200 that stands in for 8:

    XLA_FLAGS="--xla_gpu_shard_autotuning=false --xla_gpu_enable_command_buffer=" \
        python tests/links/record_loop_h200.py FOLDER

A perceptron over 8 devices: two layers, four more under `lax.scan`, backward and update (JAX
0.11.2). The recording has two runs, marked `cfp:0` and `cfp:1`.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES, LAYERS, ROWS, HIDDEN, FFN = 8, 4, 8192, 4096, 8192


def step(weights: Any, x: Any) -> tuple[Any, Any]:
    def layer(x: Any, weight: Any) -> tuple[Any, None]:
        return x + jax.nn.gelu(x @ weight[0]) @ weight[1].T, None

    def loss(weights: Any) -> Any:
        rows = x
        for i in range(2):
            rows, _ = layer(rows, weights[i])
        rows, _ = jax.lax.scan(layer, rows, weights)
        return (rows.astype(jnp.float32) ** 2).mean()

    found, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, found


def part(shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    """Returns an array of which this process has the part of one device."""
    own = jax.random.normal(jax.random.key(0), sharding.shard_shape(shape), jnp.bfloat16)
    return jax.make_array_from_single_device_arrays(shape, sharding, [own])


def main(folder: Path) -> None:
    update: Any = jax.config.update
    update("jax_mock_gpu_topology", f"1x{DEVICES}x1")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split, whole = NamedSharding(mesh, P(None, None, None, "x")), NamedSharding(mesh, P())
    weights, x = part((LAYERS, 2, HIDDEN, FFN), split), part((ROWS, HIDDEN), whole)
    jitted: Any = jax.jit(step, donate_argnums=0, out_shardings=(split, None))
    compiled = jitted.lower(weights, x).compile()
    (folder / "loop_h200.hlo.gz").write_bytes(gzip.compress(compiled.as_text().encode()))
    for _ in range(5):
        weights, loss = compiled(weights, x)
        loss.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder / "trace"), profiler_options=options)
    for i in range(2):
        with jax.profiler.TraceAnnotation(f"cfp:{i}"):
            weights, loss = compiled(weights, x)
            loss.block_until_ready()
    stop: Any = jax.profiler.stop_trace
    stop()
    (found,) = (folder / "trace").rglob("*.xplane.pb")
    (folder / "loop_h200.xplane.pb.gz").write_bytes(gzip.compress(found.read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
