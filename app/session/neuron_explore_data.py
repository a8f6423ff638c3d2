"""What the Explore page computes of neurons, cached by what it depends on; no torch."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from analysis.arrays import BoolArray
from analysis.criteria import CRITERIA
from analysis.stats.store import NEURONS
from app.charts.context import BLEND, Context
from app.plots import neuron_evidence as plots
from app.session import data
from app.session.granularity import chosen_neuron_criterion, chosen_scope
from app.session.neuron_plan_data import ReadyNeurons, ready_neurons
from app.tables import maps
from pruning.atoms.cuts import NeuronField, field_of, layer_cuts, pruned_neurons, saliency_histogram
from pruning.atoms.selection import AtomScope
from pruning.planning.neuron_plan import NeuronPlanChoice


def ready_to_explore(context: Context) -> ReadyNeurons:
    """The numbers of every neuron by the criterion and text in use.

    Raises:
        UserError: see `ready_neurons`.
    """
    criterion = chosen_neuron_criterion()
    choice = NeuronPlanChoice(criterion=criterion, scope=chosen_scope(criterion))
    return ready_neurons(context, choice)


def field(ready: ReadyNeurons) -> NeuronField:
    """The saliency of every neuron in one array."""
    return _field(ready.key, ready)


@st.cache_resource(max_entries=6)
def _field(key: str, _ready: ReadyNeurons) -> NeuronField:
    del key  # part of the cache's key only
    return field_of(_ready.ranking.neurons)


@st.cache_resource(max_entries=8)
def _ranks(key: str, scope: AtomScope, _ready: ReadyNeurons) -> NDArray[np.int32]:
    return field(_ready).ranks(scope)


def pruned(ready: ReadyNeurons, scope: AtomScope, percent: int) -> BoolArray:
    """(neurons,): True where the neuron goes."""
    ranks = _ranks(ready.key, scope, ready)
    return pruned_neurons(ranks, field(ready).pools(scope), Fraction(percent, 100))


@st.cache_data(max_entries=64)
def layer_tables(
    key: str, scope: AtomScope, percent: int, _ready: ReadyNeurons
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of `saliency_histogram` and `layer_cuts`; `key` is that of `_ready`."""
    gone = pruned(_ready, scope, percent)
    return saliency_histogram(field(_ready), gone), layer_cuts(field(_ready), gone)


def measured_texts(context: Context) -> dict[str, ReadyNeurons]:
    """By text, the numbers of every neuron; texts whose neurons were not measured are left out.

    Raises:
        UserError: see `ready_neurons`.
    """
    texts = [text for text, run in context.runs.items() if NEURONS in run.manifest.files]
    return {text: ready_to_explore(replace(context, corpora=(text,))) for text in texts}


def text_overlaps(
    texts: Mapping[str, ReadyNeurons], scope: AtomScope, percent: int
) -> pd.DataFrame:
    """Table of `PAIR_COLUMNS` over the pairs of texts."""
    return _overlaps(tuple(ready.key for ready in texts.values()), scope, percent, texts)


@st.cache_data(max_entries=64)
def _overlaps(
    keys: tuple[str, ...], scope: AtomScope, percent: int, _texts: Mapping[str, ReadyNeurons]
) -> pd.DataFrame:
    del keys
    masks = {text: pruned(ready, scope, percent) for text, ready in _texts.items()}
    pools = field(next(iter(_texts.values()))).pools(scope)
    return plots.text_overlaps(masks, pools, Fraction(percent, 100))


def beside_experts(context: Context, ready: ReadyNeurons, scope: AtomScope) -> pd.DataFrame | None:
    """Table of `BESIDE_COLUMNS` against HEAPr of whole experts on the text in use.

    None where its neurons were not measured.
    """
    corpora = list(context.runs) if context.corpus == BLEND else [context.corpus]
    runs = [context.runs[text] for text in corpora if context.weights.get(text, 0) > 0]
    if not runs or any(NEURONS not in run.manifest.files for run in runs):
        return None
    keys = tuple(data.run_key(run) for run in runs)
    weights = tuple(context.weights[run.manifest.corpus] for run in runs)
    return _beside(ready.key, keys, weights, scope, context.sparsity_percent, context, ready)


@st.cache_data(max_entries=64)
def _beside(
    key: str,
    runs: tuple[data.RunKey, ...],
    weights: tuple[float, ...],
    scope: AtomScope,
    percent: int,
    _context: Context,
    _ready: ReadyNeurons,
) -> pd.DataFrame:
    del key, runs, weights
    used = {text: weight for text, weight in _context.weights.items() if weight > 0}
    stats = data.blended_stats([_context.runs[text] for text in used], list(used.values()))
    ranked = maps.rank(CRITERIA["heapr"], stats, _context.gate)
    grid = ranked.grid
    experts = grid.index().assign(saliency=ranked.saliency[grid.present])
    gone = ranked.pruned(Fraction(percent, 100))[grid.present]
    return plots.beside_experts(field(_ready), pruned(_ready, scope, percent), experts, gone)
