"""The charts, and a table of all."""
