"""Files of people and of our own: read in bounds, written in one step."""
