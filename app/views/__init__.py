"""Dashboard pages, one per file."""
