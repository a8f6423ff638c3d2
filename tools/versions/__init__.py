"""Environments of other versions: interpreters, the lowest versions, transformers at both ends."""
