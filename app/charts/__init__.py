"""The charts: a table of all, and the context that they draw."""
