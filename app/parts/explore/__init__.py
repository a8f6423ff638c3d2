"""Parts of the Explore page."""
