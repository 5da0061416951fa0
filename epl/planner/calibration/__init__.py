"""Measures this machine, and writes it as a machine file: `epl-plan --calibrate`."""
