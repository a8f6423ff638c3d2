"""Charts: what is drawn of which statistics, with its numbers, its sentence and its origin."""
