"""Reports: charts with captions, numbers and provenance in one offline page."""
