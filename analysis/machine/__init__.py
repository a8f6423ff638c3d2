"""Devices, launchers and optional libraries of this machine. No torch."""
