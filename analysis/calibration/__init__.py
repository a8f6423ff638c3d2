"""Calibration: one forward pass, all routed-token statistics."""
