"""What a run measured: tables with fixed columns, the cache that stores them, merges and blends."""
