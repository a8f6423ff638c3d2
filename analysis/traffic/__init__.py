"""Routed experts that servers return of live traffic: read, counted, and stored as a run."""
