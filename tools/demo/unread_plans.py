"""Kept experts of each layer in random plans that no curve, search or shipped evaluation has."""

from collections.abc import Mapping

# Criterion -> what each of the six layers keeps.
EXPERTS_KEPT: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "ean": (
        (4, 4, 21, 18, 4, 14),
        (4, 9, 25, 10, 19, 21),
        (6, 21, 4, 19, 19, 20),
        (12, 25, 25, 4, 22, 11),
        (12, 26, 29, 26, 9, 12),
        (14, 26, 25, 28, 23, 8),
        (21, 24, 24, 4, 18, 16),
        (24, 30, 21, 7, 4, 10),
        (27, 30, 28, 24, 24, 21),
        (31, 30, 29, 31, 29, 30),
    ),
    "reap": (
        (8, 27, 4, 17, 14, 22),
        (16, 7, 12, 20, 4, 4),
        (17, 15, 4, 23, 4, 24),
        (21, 4, 18, 23, 22, 9),
        (26, 28, 25, 30, 24, 29),
        (28, 26, 32, 31, 28, 32),
        (28, 29, 28, 30, 22, 31),
        (29, 27, 29, 28, 27, 24),
        (29, 30, 28, 29, 28, 27),
        (31, 27, 28, 28, 30, 31),
    ),
}
