"""Figures: table -> plotly figure and sentence, one file each; plots says of what they are."""
