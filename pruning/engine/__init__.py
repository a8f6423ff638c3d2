"""Runs a model under plans: masked, layer by layer, in fewer bits, with repaired weights."""
