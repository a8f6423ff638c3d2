"""Parts of the Export page."""
