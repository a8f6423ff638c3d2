"""One small table per architecture; `listing` has them all, `base` says what a table holds."""
