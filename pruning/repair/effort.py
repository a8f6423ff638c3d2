"""How much a fit does, which decides what it costs. No torch."""

from typing import Final

ITERATIONS = 4  # more gain nothing on held-out text
DAMPINGS = (0.01, 0.1, 1.0)  # candidates, as shares of the mean diagonal of the Gram matrices
SAMPLE_COLUMNS = 16  # of the output, on which a damping is chosen

# Stages of a layer's fit, in their order. Where the trial gains nothing, no damping is chosen and
# those of FITTING are left out.
PRODUCTS: Final = "products"  # each expert's Gram matrix
TRIAL_INVERSES: Final = "trial inverses"
TRIAL: Final = "trial"  # all dampings, on a sample of columns
INVERSES: Final = "inverses"
SOLUTION: Final = "solution"  # all columns
CHOOSING: Final = (PRODUCTS, TRIAL_INVERSES, TRIAL)
FITTING: Final = (INVERSES, SOLUTION)
