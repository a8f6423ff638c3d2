"""Measures: reads checkpoints, runs models, makes tables."""
