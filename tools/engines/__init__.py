"""Serving engines, each in an environment of its own, asked to continue prompts of an export."""
