"""Parts of the Plan page."""
