"""Benchmarks of others' tools: run, imported, recorded."""
