"""What is measured of plans: results by sample, sums of layers, and where they lie on disk."""
