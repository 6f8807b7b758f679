"""Benchmarks as programs: each gives a dictionary that says what was measured, and under what."""
