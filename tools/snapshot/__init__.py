"""The parts of `tools/snapshot.py`."""
