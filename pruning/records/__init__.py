"""Records of what was measured, read back for pages, commands and the export's card."""
