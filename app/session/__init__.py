"""What one browser session looks at: its choices, and cached data that follow from them."""
