"""Generators of the demo's texts: the same bytes on every machine and Python."""
