"""Criteria that need no calibration: AIMER, Magnitude, Hoyer (arXiv:2603.18492), norms, Random."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from analysis.criteria.base import Criterion, always, numbers
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import Gate

NORM_PRODUCT = "norm_product"
_COLUMNS = ("l1", "l2_squared", "numel")
_RANDOM_SEED = 42


def _norms(table: pd.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray]:
    l1, l2_squared, numel = numbers(table, *_COLUMNS)
    return l1, np.sqrt(l2_squared), numel


def zero_experts(table: pd.DataFrame) -> pd.Series[bool]:
    """Experts whose weights are all zero: AIMER gives them its maximum and prunes them first."""
    return table["l2_squared"] == 0


def _aimer(table: pd.DataFrame, gate: Gate) -> FloatArray:
    l1, l2, numel = _norms(table)
    return np.divide(l1, np.sqrt(numel) * l2, out=np.ones_like(l1), where=l2 > 0)


def _magnitude(table: pd.DataFrame, gate: Gate) -> FloatArray:
    l1, _, numel = _norms(table)
    return l1 / numel


def _hoyer(table: pd.DataFrame, gate: Gate) -> FloatArray:
    l1, l2, numel = _norms(table)
    ratio = np.divide(l1, l2, out=np.sqrt(numel), where=l2 > 0)
    sparseness: FloatArray = (np.sqrt(numel) - ratio) / (np.sqrt(numel) - 1)
    return sparseness


AIMER = Criterion(
    name="aimer",
    label="AIMER",
    formula=r"\frac{\lVert w \rVert_1}{\sqrt{N}\, \lVert w \rVert_2}",
    reference="arXiv:2603.18492",
    source="weights",
    columns=always(*_COLUMNS),
    score=_aimer,
    prune_larger=True,
)
MAGNITUDE = replace(
    AIMER,
    name="magnitude",
    label="Magnitude",
    formula=r"\frac{\lVert w \rVert_1}{N}",
    score=_magnitude,
    prune_larger=False,
)
# Gives the same order as AIMER.
HOYER = replace(
    MAGNITUDE,
    name="hoyer",
    label="Hoyer",
    formula=r"\frac{\sqrt{N} - \lVert w \rVert_1 / \lVert w \rVert_2}{\sqrt{N} - 1}",
    score=_hoyer,
)

# A baseline that ignores the inputs; not a published method.
NEURON_NORMS = Criterion(
    name="neuron-norms",
    label="Neuron norms",
    formula=r"\lVert w^{gate}_c \rVert_2 \lVert w^{up}_c \rVert_2 \lVert w^{down}_c \rVert_2",
    reference="baseline",
    source="weights",
    columns=always(),
    score=None,
    neuron_score=lambda table: numbers(table, NORM_PRODUCT)[0],
)


@cache
def random(seed: int = _RANDOM_SEED) -> Criterion:
    """The baseline Random: an order drawn with this seed, whatever the model."""

    def draw(table: pd.DataFrame) -> FloatArray:
        return np.random.default_rng(seed).random(len(table))

    is_default = seed == _RANDOM_SEED
    return Criterion(
        name="random" if is_default else f"random:{seed}",
        label="Random" if is_default else f"Random (draw {seed})",
        formula=rf"u_j \sim U(0, 1), \text{{seed }} {seed}",
        reference="baseline",
        source="none",
        columns=always(),
        score=lambda table, gate: draw(table),
        neuron_score=draw,
    )


RANDOM = random()
