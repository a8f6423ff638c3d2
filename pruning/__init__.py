"""Decides and rewrites: plans, masks, exports."""
