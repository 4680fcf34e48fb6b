"""Theorem 1, probed exactly (see `bench.theorem`)."""
