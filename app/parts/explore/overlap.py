"""Explore, how much the choice depends on the text: the 18 variants, pairs, sparsity, exponents."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import pandas as pd
import streamlit as st

from analysis.criteria import Criterion, get_criterion
from analysis.ranking.overlap import criterion_overlap, mean_overlaps, variant_overlaps
from analysis.stats.store import Run
from analysis.stats.tables import ExpertStats, Gate
from app.figures import variant_map as variant_figure
from app.figures.variant_grid import clicked_cell
from app.frame.charts import show_chart
from app.frame.controls import switch
from app.literal import literal
from app.plots import evidence
from app.plots import explore as plots
from app.plots.chart import Chart, made_by
from app.session import data
from app.session.state import View, apply_exponents
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


def pair_overlaps(view: View, criterion: Criterion) -> pd.DataFrame:
    """Table of `criterion_overlap` over the pairs of texts in use, at the sparsity in use."""
    return _pairs(run_keys(view.runs), criterion.name, view.gate, view.sparsity_percent)


@st.cache_data(max_entries=512)
def _pairs(runs: RunKeys, criterion: str, gate: Gate, percent: int) -> pd.DataFrame:
    share = Fraction(percent, 100)
    return criterion_overlap(get_criterion(criterion), _loaded(runs), gate, share)


def mean_variant_overlaps(view: View) -> pd.DataFrame:
    """Table of `mean_overlaps` over the pairs of texts in use, at the sparsity in use."""
    return _variant_overlaps(run_keys(view.runs), view.gate, view.sparsity_percent)


@st.cache_data(max_entries=256)
def _variant_overlaps(runs: RunKeys, gate: Gate, percent: int) -> pd.DataFrame:
    return mean_overlaps(variant_overlaps(_loaded(runs), gate, Fraction(percent, 100)))


@st.cache_data(max_entries=256)
def _curve(runs: RunKeys, names: tuple[str, ...], gate: Gate) -> pd.DataFrame:
    return maps.overlap_curve([get_criterion(name) for name in names], _loaded(runs), gate)


def can_compare_texts(view: View) -> bool:
    """Whether there is an overlap to show; if not, says why and what to do."""
    if view.sparsity_percent == 0:
        reason = "Nothing is pruned at 0%, so there is nothing to compare. Raise the sparsity."
    elif len(view.runs) < 2:
        reason = (
            f"Overlap compares calibrations on different texts; {literal(view.model.name)} has "
            f"{len(view.runs)}. Calibrate on another text on the **Start** page."
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


def variant_part(view: View, *, on_select: Callable[[], None]) -> None:
    """The 18 variants: how much the pruned set depends on the calibration text."""
    st.markdown(
        f"**Overlap map**: pruned experts that the calibration texts agree on, at "
        f"{view.sparsity} sparsity. Click a cell to take its exponents."
    )
    if not can_compare_texts(view):
        return
    table = mean_variant_overlaps(view)
    selected = view.criterion.exponents if view.criterion else None
    about = made_by(view.about(), f"gate {view.gate}")
    chart = plots.overlap_map_chart(table, selected, about)
    st.markdown(chart.alt)
    show_chart(chart, on_select=on_select)


def overlap_part(view: View) -> None:
    """Pairs of texts, and the course over sparsity."""
    kind = switch("Overlap", "overlap", _KINDS)
    if not can_compare_texts(view):
        return
    if view.criterion is None or view.criterion.source != "routed":
        st.info(
            f"{view.criterion.label if view.criterion else 'This criterion'} reads no text, so "
            "all texts agree. Choose a calibrated criterion.",
            icon=":material/info:",
        )
    elif kind == "sparsity":
        show_chart(_curve_chart(view, view.criterion))
    else:
        show_chart(_matrix_chart(view, view.criterion))


def _matrix_chart(view: View, criterion: Criterion) -> Chart:
    pairs = pair_overlaps(view, criterion)
    about = made_by(view.about(), criterion.label, f"gate {view.gate}")
    return plots.overlap_chart(pairs, list(view.runs), about)


def _curve_chart(view: View, criterion: Criterion) -> Chart:
    names = tuple(dict.fromkeys((criterion.name, *plots.CURVE_BESIDE)))
    table = _curve(run_keys(view.runs), names, view.gate)
    about = made_by(view.about(), f"gate {view.gate}")
    return plots.curve_chart(table, view.sparsity_percent / 100, about)


def effects_part(view: View) -> None:
    """What b, alpha and beta each do to the overlap, and the map at several sparsities."""
    if not can_compare_texts(view):
        return
    models = _models_to_show(view)
    st.markdown(
        "**What each exponent does**: mean overlap of the variants that share its value; the bars "
        "run from the least to the most."
    )
    means = [_variant_overlaps(runs, view.gate, view.sparsity_percent) for runs in models.values()]
    about = made_by(view.about(), f"gate {view.gate}", f"models: {', '.join(models)}")
    show_chart(plots.effects_chart(means, about))
    st.markdown(
        "**The map at other sparsities**: click a cell to take its exponents and its sparsity."
    )
    table = _grid(tuple(models.items()), view.gate, _grid_percents(view))
    selected = view.criterion.exponents if view.criterion else None
    show_chart(evidence.grid_chart(table, selected, about), on_select=apply_clicked_cell)


def _models_to_show(view: View) -> dict[str, RunKeys]:
    """By name, this model or every calibrated one, with the corpora and runs of each."""
    every = {name: run_keys(runs) for name, runs in data.calibrated_models().items()}
    mine = {view.model.name: run_keys(view.runs)}
    if len(every) < 2:
        return mine
    options = {
        "this": f"Only {literal(view.model.name)}",
        "all": f"All {len(every)} calibrated models",
    }
    return every if switch("Models", "models", options) == "all" else mine


def _grid_percents(view: View) -> tuple[int, ...]:
    """The usual ones and the one in use, without those at which no expert would go."""
    percents = sorted({*evidence.GRID_PERCENTS, view.sparsity_percent})
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
    view: View = st.session_state["view"]
    if percent in possible_percents(view.model):
        st.session_state["sparsity"] = percent
