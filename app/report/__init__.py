"""Reports: chosen figures with their sentences, numbers and origin in one offline page."""
