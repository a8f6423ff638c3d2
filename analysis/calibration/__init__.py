"""Calibration: one forward pass, all statistics of experts and routers."""
