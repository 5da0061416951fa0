"""Benchmarks of EPL against named peers and bounds; see docs/benchmarks.md."""
