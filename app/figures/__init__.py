"""Figures: table -> plotly figure, one file per view."""
