"""Building blocks of the pages: a module or package per page."""
