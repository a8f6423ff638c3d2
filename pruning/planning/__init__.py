"""From choices to rankings and plans, for pages, commands and jobs alike."""
