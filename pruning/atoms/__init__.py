"""Plans that remove neurons inside experts (atomic experts of HEAPr): choice, mask and widths."""
