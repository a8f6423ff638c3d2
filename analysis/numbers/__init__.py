"""Arrays, elements of tensors, exact fractions."""
