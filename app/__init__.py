"""Shows and runs: dashboard, command line, jobs."""
