"""CFP plans how to split a JAX training step over many devices, by measuring."""
