"""Parts of the Evaluate page."""
