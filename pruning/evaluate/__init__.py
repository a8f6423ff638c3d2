"""How much a pruned model differs from the original: samples, measures, results."""
