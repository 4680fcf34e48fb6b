"""Peak FLOP/s of devices, as their makers state them: dense products, without sparsity.

A model's FLOPs over the time of a step and the peak of its devices are its MFU. The peak is that
of the number format in which most of the products are computed; float32 is computed as TF32 on
these GPUs, unless a step asks for more precision. A device that is not in the table has no MFU.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cfp.blocks.contraction import flops
from cfp.blocks.operands import OPERANDS
from cfp.trace import Graph


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one device in teraFLOP/s: of bfloat16 and float16, and of TF32, with the document
    of its maker that states them. A figure that is stated with sparsity alone is halved here."""

    half: float
    single: float
    source: str


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture (white paper, table of H100 peak performance)"
_BLACKWELL = "NVIDIA Blackwell datasheet (specifications of an individual GPU, with sparsity)"

# by how the driver names the device: the whole name, or what it begins with before a space or dash
PEAKS: dict[str, Peak] = {
    "NVIDIA A100": Peak(312.0, 156.0, "NVIDIA A100 Tensor Core GPU datasheet"),
    "NVIDIA H100 80GB HBM3": Peak(989.4, 494.7, f"{_HOPPER}, SXM5"),
    "NVIDIA H100 PCIe": Peak(756.0, 378.0, f"{_HOPPER}, PCIe"),
    "NVIDIA H100 NVL": Peak(835.5, 417.5, "NVIDIA H100 NVL GPU datasheet (with sparsity)"),
    # the datasheet of the H200 states the H100's figures, rounded: it is the same chip
    "NVIDIA H200": Peak(989.4, 494.7, f"NVIDIA H200 Tensor Core GPU datasheet, SXM; {_HOPPER}"),
    "NVIDIA H200 NVL": Peak(
        835.5, 417.5, "NVIDIA H200 Tensor Core GPU datasheet, NVL (with sparsity)"
    ),
    "NVIDIA B200": Peak(2250.0, 1100.0, f"{_BLACKWELL}, HGX B200"),
    "NVIDIA GB200": Peak(2500.0, 1250.0, f"{_BLACKWELL}, GB200 NVL72"),
    "NVIDIA L40S": Peak(362.05, 183.0, "NVIDIA L40S datasheet"),
    "NVIDIA L4": Peak(121.0, 60.0, "NVIDIA L4 Tensor Core GPU datasheet (with sparsity)"),
}
PART = " MIG "  # in the name of a part of a GPU, of whose peak it has only a share


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Returns the peak FLOP/s of a device in a number format; None where it is not known here."""
    found = [name for name in PEAKS if f"{device_kind} ".startswith((f"{name} ", f"{name}-"))]
    if not found or PART in device_kind or dtype not in ("bfloat16", "float16", "float32"):
        return None
    peak = PEAKS[max(found, key=len)]
    return 1e12 * (peak.single if dtype == "float32" else peak.half)


def product_dtype(graph: Graph) -> str:
    """Returns the number format in which most of the FLOPs of a step's products are computed."""
    work: Counter[str] = Counter()
    for equation in graph.equations:
        if equation.primitive in OPERANDS:
            dtype = graph.values[equation.inputs[0]].dtype
            work[str(dtype)] += int(flops(equation.op) * graph.times(equation.loop))
    return work.most_common(1)[0][0] if work else ""
