"""What a person can ask for: validated values, which the job table stores as JSON."""
