"""Benchmarks: lm-evaluation-harness as a job, results of other tools, and records of both."""
