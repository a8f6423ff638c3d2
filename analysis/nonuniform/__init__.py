"""Checkpoints whose layers hold different numbers of experts: how they are built and loaded."""
