"""Checkpoints whose layers hold experts of different numbers or widths: built and loaded."""
