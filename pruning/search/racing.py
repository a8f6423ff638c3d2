"""Racing, which is not in the paper: candidates that are very likely worse are given up early."""

import math

from analysis.arrays import FloatArray

_LEAST_SAMPLES = 8


def is_behind(values: FloatArray, rival: FloatArray, confidence: float) -> bool:
    """Whether a candidate is worse than a rival with this confidence, on the samples so far.

    A one-sided paired t-test: the upper bound of the mean difference is below zero. Tested again
    after every block, so over a whole search more good candidates than 1 - confidence may be lost.

    Args:
        values: (n,) of the candidate, in the order of the samples.
        rival: (at least n,) of the rival.
        confidence: above 0.5, below 1.
    """
    count = len(values)
    if count < _LEAST_SAMPLES:
        return False
    from scipy.special import stdtrit  # slow to import

    difference = values - rival[:count]
    spread = float(difference.std(ddof=1)) / math.sqrt(count)
    return float(difference.mean()) + float(stdtrit(count - 1, confidence)) * spread < 0
