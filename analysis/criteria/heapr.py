"""Criteria of neurons: HEAPr, and CAMERA-P, a baseline of the HEAPr paper.

Both score every neuron; a whole expert's score is the sum over its neurons.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from analysis.criteria.base import Criterion, always, numbers
from analysis.criteria.unified import mean_over_routed
from analysis.errors import CriterionError
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import Gate

DEFAULT_LAMBDA = 1.0


def _heapr_experts(table: pd.DataFrame, gate: Gate) -> FloatArray:
    tokens, product = numbers(table, "num_tokens", "neuron_product")
    return 0.5 * mean_over_routed(mean_over_routed(product, tokens), tokens)


def _heapr_neurons(table: pd.DataFrame) -> FloatArray:
    tokens, outputs, slopes = numbers(table, "num_tokens", "output_sq", "slope_sq")
    return 0.5 * mean_over_routed(outputs, tokens) * mean_over_routed(slopes, tokens)


# s_c = 1/2 mean ||e_c||^2 * mean (dloss/de_c . u)^2, which is Eq. 16: docs/concepts/heapr.md.
HEAPR = Criterion(
    name="heapr",
    label="HEAPr",
    formula=r"\sum_c \tfrac{1}{2}\, \overline{e_c^\top \bar G_j\, e_c}",
    reference="HEAPr, Eq. 15-16",
    source="routed",
    columns=always("num_tokens", "neuron_product"),
    score=_heapr_experts,
    neuron_score=_heapr_neurons,
)


@cache
def camera_p(weight: float = DEFAULT_LAMBDA) -> Criterion:
    """CAMERA-P (arXiv:2508.02322) as HEAPr's section 4.2 gives it; `weight` is lambda, at least 0.

    energy_c = (||a_c||_2 + lambda ||a_c||_inf) ||w_c||_2 over the tokens routed to the expert: a_c
    are the neuron's activations, w_c is its column of down. Our copy of the paper lost the index of
    the second norm; the maximum is our reading, and lambda = 1 our default.
    """
    if not (weight >= 0 and np.isfinite(weight)):
        raise CriterionError(f"lambda of CAMERA-P is {weight:g}; it must be 0 or more.")

    def experts(table: pd.DataFrame, gate: Gate) -> FloatArray:
        norms, peaks = numbers(table, "neuron_norm_sum", "neuron_peak_sum")
        return norms + weight * peaks

    def neurons(table: pd.DataFrame) -> FloatArray:
        outputs, peaks = numbers(table, "output_sq", "output_max")
        energy: FloatArray = np.sqrt(outputs) + weight * peaks
        return energy

    is_default = weight == DEFAULT_LAMBDA
    return Criterion(
        name="camera-p" if is_default else f"camera-p:{weight:g}",
        label="CAMERA-P" if is_default else f"CAMERA-P, lambda {weight:g}",
        formula=r"\sum_c (\lVert a_c \rVert_2 + \lambda \lVert a_c \rVert_\infty)"
        r" \lVert w_c \rVert_2",
        reference="HEAPr, section 4.2; arXiv:2508.02322",
        source="routed",
        columns=always("neuron_norm_sum", "neuron_peak_sum"),
        score=experts,
        neuron_score=neurons,
        within_layers=True,
    )


CAMERA_P = camera_p()
