"""Freezes what must not change while code moves, and compares: `python -m tools.freeze`."""
