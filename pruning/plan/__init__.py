"""What goes, in numbers: plans, limits, budgets and sizes. No model runs here."""
