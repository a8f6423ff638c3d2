"""Explore, how much the choice depends on the text: the 18 variants, pairs, sparsity, exponents."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import pandas as pd
import streamlit as st

from analysis.criteria import Criterion, get_criterion
from analysis.ranking.overlap import criterion_overlap, mean_overlaps, variant_overlaps
from analysis.stats.store import Run
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Drawing
from app.charts.context import Context
from app.figures import variant_map as variant_figure
from app.figures.variant_grid import clicked_cell
from app.frame.charts import show_chart
from app.frame.controls import switch
from app.literal import literal
from app.plots import evidence
from app.plots import explore as plots
from app.session import data
from app.session.state import apply_exponents
from app.tables import maps
from pruning.planning.percents import possible_percents

_MAP = "overlap-map"
_KINDS = {"pairs": "Between texts", "sparsity": "Against sparsity"}


RunKeys = tuple[tuple[str, data.RunKey], ...]


def run_keys(runs: Mapping[str, Run]) -> RunKeys:
    """Corpora and keys of their runs: what tables of overlap are cached by."""
    return tuple((corpus, data.run_key(run)) for corpus, run in runs.items())


def _loaded(runs: RunKeys) -> dict[str, ExpertStats]:
    return {corpus: data.stats_of_key(key) for corpus, key in runs}


def pair_overlaps(context: Context, criterion: Criterion) -> pd.DataFrame:
    """Table of `criterion_overlap` over the pairs of texts in use, at the sparsity in use."""
    return _pairs(run_keys(context.runs), criterion.name, context.gate, context.sparsity_percent)


@st.cache_data(max_entries=512)
def _pairs(runs: RunKeys, criterion: str, gate: Gate, percent: int) -> pd.DataFrame:
    share = Fraction(percent, 100)
    return criterion_overlap(get_criterion(criterion), _loaded(runs), gate, share)


def mean_variant_overlaps(context: Context) -> pd.DataFrame:
    """Table of `mean_overlaps` over the pairs of texts in use, at the sparsity in use."""
    return _variant_overlaps(run_keys(context.runs), context.gate, context.sparsity_percent)


@st.cache_data(max_entries=256)
def _variant_overlaps(runs: RunKeys, gate: Gate, percent: int) -> pd.DataFrame:
    return mean_overlaps(variant_overlaps(_loaded(runs), gate, Fraction(percent, 100)))


@st.cache_data(max_entries=256)
def _curve(runs: RunKeys, names: tuple[str, ...], gate: Gate) -> pd.DataFrame:
    return maps.overlap_curve([get_criterion(name) for name in names], _loaded(runs), gate)


def can_compare_texts(context: Context) -> bool:
    """Whether there is an overlap to show; if not, says why and what to do."""
    if context.sparsity_percent == 0:
        reason = "Nothing is pruned at 0%, so there is nothing to compare. Raise the sparsity."
    elif len(context.runs) < 2:
        reason = (
            f"Overlap compares calibrations on different texts; {literal(context.model.name)} has "
            f"{len(context.runs)}. Calibrate on another text on the **Start** page."
        )
    else:
        return True
    st.info(reason, icon=":material/info:")
    return False


def apply_clicked_variant() -> None:
    """A cell of the map was clicked: take its exponents."""
    chosen = variant_figure.clicked_variant(st.session_state.get(f"chart.{_MAP}"))
    if chosen is not None:
        apply_exponents(chosen)


def variant_part(context: Context, *, on_select: Callable[[], None]) -> None:
    """The 18 variants: how much the pruned set depends on the calibration text."""
    st.markdown(
        f"**Overlap map**: pruned experts that the calibration texts agree on, at "
        f"{context.sparsity} sparsity. Click a cell to take its exponents."
    )
    if not can_compare_texts(context):
        return
    table = mean_variant_overlaps(context)
    selected = context.criterion.exponents if context.criterion else None
    about = context.about(f"gate {context.gate}")
    chart = plots.overlap_map_chart(table, selected, about)
    st.markdown(chart.alt)
    show_chart(chart, on_select=on_select)


def overlap_part(context: Context) -> None:
    """Pairs of texts, and the course over sparsity."""
    kind = switch("Overlap", "overlap", _KINDS)
    if not can_compare_texts(context):
        return
    if context.criterion is None or context.criterion.source != "routed":
        st.info(
            f"{context.criterion.label if context.criterion else 'This criterion'} reads no text, "
            "so all texts agree. Choose a calibrated criterion.",
            icon=":material/info:",
        )
    elif kind == "sparsity":
        show_chart(_curve_chart(context, context.criterion))
    else:
        show_chart(_matrix_chart(context, context.criterion))


def _matrix_chart(context: Context, criterion: Criterion) -> Drawing:
    pairs = pair_overlaps(context, criterion)
    about = context.about(criterion.label, f"gate {context.gate}")
    return plots.overlap_chart(pairs, list(context.runs), about)


def _curve_chart(context: Context, criterion: Criterion) -> Drawing:
    names = tuple(dict.fromkeys((criterion.name, *plots.CURVE_BESIDE)))
    table = _curve(run_keys(context.runs), names, context.gate)
    about = context.about(f"gate {context.gate}")
    return plots.curve_chart(table, context.sparsity_percent / 100, about)


def effects_part(context: Context) -> None:
    """What b, alpha and beta each do to the overlap, and the map at several sparsities."""
    if not can_compare_texts(context):
        return
    models = _models_to_show(context)
    st.markdown(
        "**What each exponent does**: mean overlap of the variants that share its value; the bars "
        "run from the least to the most."
    )
    means = [
        _variant_overlaps(runs, context.gate, context.sparsity_percent) for runs in models.values()
    ]
    about = context.about(f"gate {context.gate}", f"models: {', '.join(models)}")
    show_chart(plots.effects_chart(means, about))
    st.markdown(
        "**The map at other sparsities**: click a cell to take its exponents and its sparsity."
    )
    table = _grid(tuple(models.items()), context.gate, _grid_percents(context))
    selected = context.criterion.exponents if context.criterion else None
    show_chart(evidence.grid_chart(table, selected, about), on_select=apply_clicked_cell)


def _models_to_show(context: Context) -> dict[str, RunKeys]:
    """By name, this model or every calibrated one, with the corpora and runs of each."""
    every = {name: run_keys(runs) for name, runs in data.calibrated_models().items()}
    mine = {context.model.name: run_keys(context.runs)}
    if len(every) < 2:
        return mine
    options = {
        "this": f"Only {literal(context.model.name)}",
        "all": f"All {len(every)} calibrated models",
    }
    return every if switch("Models", "models", options) == "all" else mine


def _grid_percents(context: Context) -> tuple[int, ...]:
    """The usual ones and the one in use, without those at which no expert would go."""
    percents = sorted({*evidence.GRID_PERCENTS, context.sparsity_percent})
    return tuple(percent for percent in percents if percent)


@st.cache_data(max_entries=64)
def _grid(
    models: tuple[tuple[str, RunKeys], ...], gate: Gate, percents: tuple[int, ...]
) -> pd.DataFrame:
    sparsities = [Fraction(percent, 100) for percent in percents]
    return evidence.grid_table({name: _loaded(runs) for name, runs in models}, gate, sparsities)


def apply_clicked_cell() -> None:
    """A cell of the maps at several sparsities was clicked: take its exponents and sparsity."""
    chosen = clicked_cell(st.session_state.get("chart.overlap-maps"))
    if chosen is None:
        return
    exponents, percent = chosen
    apply_exponents(exponents)
    context: Context = st.session_state["context"]
    if percent in possible_percents(context.model):
        st.session_state["sparsity"] = percent
