"""The charts: one table of all of them, and the context that each is drawn of."""
