"""Types of numpy arrays, and their rescaling."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
# Layer -> for each expert, by id, a number for each of its neurons.
NeuronScores = Mapping[int, tuple[FloatArray, ...]]


def rescale(saliency: FloatArray) -> FloatArray:
    """Saliency rescaled to [0, 1] per layer; 0 in a constant layer, NaN for absent experts."""
    low = np.nanmin(saliency, axis=1, keepdims=True)
    span = np.nanmax(saliency, axis=1, keepdims=True) - low
    flat = span <= 0
    return np.where(flat & ~np.isnan(saliency), 0.0, (saliency - low) / np.where(flat, 1.0, span))
