"""Repair: the kept experts' down projections, refitted so that they take over what was removed."""
