"""Sensitivity: what removal costs in each layer alone, and the allocations that follow."""
