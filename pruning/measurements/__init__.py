"""The one table of what was measured: plan, samples, measure -> sum and count by sample.

Rooms below import it; it imports `plan` and `measures` alone.
"""
