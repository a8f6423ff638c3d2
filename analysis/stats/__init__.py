"""What a run measured: tables with stated columns, the cache that keeps them, merges, blends."""
