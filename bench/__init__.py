"""Benchmarks: one file or package per figure of the evaluation."""
