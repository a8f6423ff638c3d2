"""Explore, how much the choice depends on the text: the 18 variants, pairs, sparsity, exponents."""

from collections.abc import Callable
from fractions import Fraction

import pandas as pd
import streamlit as st

from analysis.criteria import Criterion, get_criterion
from analysis.overlap import criterion_overlap, mean_overlaps, variant_overlaps
from analysis.stats import ExpertStats, Gate
from app import data, maps
from app.charts import Chart, made_by, show_chart
from app.controls import switch
from app.figures import variant_map as variant_figure
from app.plots import explore as plots
from app.state import View, apply_exponents

_MAP = "overlap-map"
_KINDS = {"pairs": "Between texts", "sparsity": "Against sparsity"}


def run_keys(view: View) -> tuple[tuple[str, str], ...]:
    """Corpus and run id of the runs in use: what tables of overlap are cached by."""
    return tuple((corpus, run.manifest.run_id) for corpus, run in view.runs.items())


def loaded(runs: tuple[tuple[str, str], ...]) -> dict[str, ExpertStats]:
    """The statistics of `run_keys`, by corpus."""
    return {corpus: data.expert_stats(data.settings().store.get(run)) for corpus, run in runs}


def mean_variant_overlaps(view: View) -> pd.DataFrame:
    """Table of `mean_overlaps` over the pairs of texts in use, at the sparsity in use."""
    return _variant_overlaps(run_keys(view), view.gate, view.sparsity_percent)


@st.cache_data(max_entries=256)
def _variant_overlaps(runs: tuple[tuple[str, str], ...], gate: Gate, percent: int) -> pd.DataFrame:
    return mean_overlaps(variant_overlaps(loaded(runs), gate, Fraction(percent, 100)))


@st.cache_data(max_entries=256)
def _curve(runs: tuple[tuple[str, str], ...], names: tuple[str, ...], gate: Gate) -> pd.DataFrame:
    return maps.overlap_curve([get_criterion(name) for name in names], loaded(runs), gate)


def can_compare_texts(view: View) -> bool:
    """Whether there is an overlap to show; if not, says why and what to do."""
    if view.sparsity_percent == 0:
        reason = "Nothing is pruned at 0%, so there is nothing to compare. Raise the sparsity."
    elif len(view.runs) < 2:
        reason = (
            f"Overlap compares calibrations on different texts; {view.model.name} has "
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
    show_chart(
        plots.overlap_map_chart(table, selected, made_by(view.about(), f"gate {view.gate}")),
        on_select=on_select,
    )


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
    fraction = Fraction(view.sparsity_percent, 100)
    pairs = criterion_overlap(criterion, loaded(run_keys(view)), view.gate, fraction)
    about = made_by(view.about(), criterion.label, f"gate {view.gate}")
    return plots.overlap_chart(pairs, list(view.runs), about)


def _curve_chart(view: View, criterion: Criterion) -> Chart:
    names = tuple(dict.fromkeys((criterion.name, *plots.CURVE_BESIDE)))
    table = _curve(run_keys(view), names, view.gate)
    about = made_by(view.about(), f"gate {view.gate}")
    return plots.curve_chart(table, view.sparsity_percent / 100, about)


def effects_part(view: View) -> None:
    """What b, alpha and beta each do to the overlap."""
    st.markdown(
        "**What each exponent does**: mean overlap of the variants that share its value; the bars "
        "run from the least to the most."
    )
    if not can_compare_texts(view):
        return
    about = made_by(view.about(), f"gate {view.gate}")
    show_chart(plots.effects_chart(mean_variant_overlaps(view), about))
