"""Plans that remove neurons inside experts: choice, mask and widths."""
