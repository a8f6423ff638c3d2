"""What every page shares: sidebar, charts, controls, list of jobs, login."""
