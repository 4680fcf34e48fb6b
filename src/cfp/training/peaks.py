"""Peak FLOP/s of devices, as their makers state them: dense products, without sparsity.

A model's FLOPs over the time of a step and the peak of its devices are its MFU. The peak is that
of the number format in which most of the products are computed; float32 is computed as TF32 on
these GPUs, unless a step asks for more precision. A device that is not in the table has no MFU.
"""

from __future__ import annotations

from collections import Counter

from cfp.blocks.contraction import flops
from cfp.blocks.operands import OPERANDS
from cfp.trace import Graph

# teraFLOP/s of bfloat16 or float16, and of TF32, by how the name of a device begins. The figures
# are NVIDIA's data sheets of the products; where a sheet states them with sparsity, half of that.
PEAKS: dict[str, tuple[float, float]] = {
    "NVIDIA A100": (312.0, 156.0),  # A100 Tensor Core GPU data sheet
    "NVIDIA H100": (989.4, 494.7),  # H100 data sheet, SXM
    "NVIDIA H100 PCIe": (756.0, 378.0),  # H100 PCIe product brief
    "NVIDIA H100 NVL": (835.5, 417.5),  # H100 data sheet, NVL
    "NVIDIA H200": (989.4, 494.7),  # H200 data sheet, SXM
    "NVIDIA H200 NVL": (835.5, 417.5),  # H200 data sheet, NVL
    "NVIDIA B200": (2250.0, 1125.0),  # HGX B200, an eighth of the board
    "NVIDIA GB200": (2500.0, 1250.0),  # GB200 NVL72, a 72nd of the rack
    "NVIDIA L40S": (362.05, 183.0),  # L40S data sheet
    "NVIDIA L4": (121.0, 60.0),  # L4 data sheet
}


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns the peak FLOP/s of a device in a number format; None where it is not known here."""
    found = [name for name in PEAKS if f"{device_kind} ".startswith((f"{name} ", f"{name}-"))]
    if not found or dtype not in ("bfloat16", "float16", "float32"):
        return None
    half, single = PEAKS[max(found, key=len)]
    return 1e12 * (single if dtype == "float32" else half)


def product_dtype(graph: Graph) -> str:
    """Returns the number format in which most of the FLOPs of a step's products are computed."""
    work: Counter[str] = Counter()
    for equation in graph.equations:
        if equation.primitive in OPERANDS:
            dtype = graph.values[equation.inputs[0]].dtype
            work[str(dtype)] += int(flops(equation.op) * graph.times(equation.loop))
    return work.most_common(1)[0][0] if work else ""
