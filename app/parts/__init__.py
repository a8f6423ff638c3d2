"""Building blocks of the pages, one package per page."""
