"""Measurements: run them with ``python -m benchmarks.NAME``; benchmarks/README.md says what each one answers."""
