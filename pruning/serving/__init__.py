"""Programs that serve an export: which of them read it, and by which command."""
