"""Names that people and files hold, written out here and not taken from the program."""

# Name of a criterion -> b, alpha, beta (arXiv:2606.15716, Table 1).
EXPONENTS = {
    "frequency": (0, 0, 0),
    "seer": (0, 1, 0),
    "ean": (0, 0, 1),
    "reap": (1, 1, 1),
    "man": (1, 0, 1),
    "msan": (1, 0, 2),
    "gate-ean": (0, 1, 1),
    "squared-gate-energy": (0, 2, 2),
}
