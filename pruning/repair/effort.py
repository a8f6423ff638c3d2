"""How much a fit does, which decides what it costs. No torch."""

ITERATIONS = 4  # more gain nothing on held-out text
DAMPINGS = (0.01, 0.1, 1.0)  # candidates, as shares of the mean diagonal of the Gram matrices
SAMPLE_COLUMNS = 16  # of the output, on which a damping is chosen
