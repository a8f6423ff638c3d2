"""Loads checkpoints whose layers differ in number or width of experts."""
