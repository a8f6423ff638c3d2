"""Calibration: all statistics of experts and routers in one forward pass."""
