"""All that can be asked of a plan: options, declared once, and the rules on what goes together."""
