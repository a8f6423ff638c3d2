"""State of one browser session: choices, and cached data derived from them."""
