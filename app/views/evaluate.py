"""Evaluate: what pruning costs."""

from app.evaluate_parts import published_part

published_part()
