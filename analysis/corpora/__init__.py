"""Calibration corpora: a name or a file -> documents -> token sequences, seeded and counted.

Only `streams` imports `datasets` (for datasets of the hub), and only `representatives` imports
scikit-learn (for k-means selection).
"""
