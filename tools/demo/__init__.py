"""Builds the demo model that the program ships."""
