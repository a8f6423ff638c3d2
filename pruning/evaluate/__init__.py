"""How much a pruned model differs from the full one: samples, measures, results."""
