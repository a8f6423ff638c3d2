"""Jobs: detached worker processes, their SQLite table, and the runner that starts them."""
