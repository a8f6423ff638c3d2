"""Rewrites checkpoints on disk, byte by byte."""
