"""Sensitivity: what each layer's losses cost by themselves, and the allocations that follow."""
