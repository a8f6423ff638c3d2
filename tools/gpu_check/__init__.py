"""Check a GPU: calibration, placements and exports on random models of published shapes."""
