"""Plans that remove neurons inside experts (atoms): chosen, masked, and written in three widths."""
