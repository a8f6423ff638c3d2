"""A checkpoint on disk: which files hold it, its tensors by name, shape and place. No torch."""
