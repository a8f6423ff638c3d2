"""The parts of the Explore page: numbers on top, overlap maps, clarity of the cut, command."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pandas as pd
import streamlit as st

from analysis.criteria import Criterion, get_criterion
from analysis.overlap import (
    chance_overlap,
    criterion_overlap,
    mean_overlaps,
    overlap_matrix,
    variant_overlaps,
)
from analysis.ranking import Stats
from analysis.stats import ExpertStats, Gate, NoStats
from app import data, maps
from app.controls import switch
from app.figures import overlap_curve as curve_figure
from app.figures import overlap_matrix as matrix_figure
from app.figures import stratification as separation_figures
from app.figures import variant_map as variant_figure
from app.figures.theme import PLOTLY_CONFIG
from app.state import View, apply_exponents, criterion_badge
from pruning.sizes import format_bytes

_VARIANT_KEY = "explore.variants"


def is_dark() -> bool:
    """Whether the page is shown in the dark theme."""
    return bool(st.context.theme.type == "dark")


def needed_stats(view: View, criterion: Criterion) -> Stats | None:
    """The statistics that a criterion reads; None after saying what is missing and what to do."""
    if criterion.source == "routed":
        if view.corpus:
            return data.expert_stats(view.runs[view.corpus])
        st.info(
            f"{criterion.label} ranks by routed tokens, and {view.model.name} has not been "
            "calibrated yet. Start a calibration on the **Start** page, or choose AIMER or "
            "Magnitude, which need none.",
            icon=":material/info:",
        )
        return None
    if criterion.source == "none":
        return NoStats(view.model.layers)
    run = data.weight_run(view.model)
    if run is not None:
        return data.weight_stats(run)
    st.info(
        f"{criterion.label} reads the weights of {view.model.name}, which have not been measured "
        "yet. Start that on the **Start** page: it takes seconds.",
        icon=":material/info:",
    )
    return None


@st.cache_data(max_entries=256)
def _variant_overlaps(runs: tuple[tuple[str, str], ...], gate: Gate, percent: int) -> pd.DataFrame:
    return mean_overlaps(variant_overlaps(_loaded(runs), gate, Fraction(percent, 100)))


@st.cache_data(max_entries=256)
def _curve(runs: tuple[tuple[str, str], ...], names: tuple[str, ...], gate: Gate) -> pd.DataFrame:
    criteria = [get_criterion(name) for name in names]
    return maps.overlap_curve(criteria, _loaded(runs), gate)


def _loaded(runs: tuple[tuple[str, str], ...]) -> dict[str, ExpertStats]:
    return {corpus: data.expert_stats(data.settings().store.get(run)) for corpus, run in runs}


def _run_keys(view: View) -> tuple[tuple[str, str], ...]:
    return tuple((corpus, run.manifest.run_id) for corpus, run in view.runs.items())


def metrics(view: View, shown: maps.Ranked, beside: maps.Ranked) -> None:
    """Four numbers that answer: what, how different, how stable, how small."""
    criterion, fraction = shown.criterion, Fraction(view.sparsity_percent, 100)
    first, second, third, fourth = st.columns(4)
    first.metric(
        "Criterion",
        criterion.label,
        criterion_badge(criterion),
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
        help=f"${criterion.formula}$  \n{criterion.reference}",
    )
    same = maps.same_pruned(shown, beside, fraction)
    second.metric(
        f"Pruned by {beside.criterion.label} too",
        _percent(same),
        _against_chance(same, chance_overlap(shown.grid, fraction)),
        border=True,
        height="stretch",
        help="Share of the experts pruned here which the criterion on the left prunes as well.",
    )
    with third:
        _stability_metric(view, criterion, fraction)
    after = data.size_report_of(view.model, view.sparsity_percent).bytes_after
    before = view.model.checkpoint.nbytes
    fourth.metric(
        "Size after pruning",
        format_bytes(after),
        f"-{format_bytes(before - after)}" if after < before else "nothing removed",
        delta_color="inverse" if after < before else "off",
        border=True,
        height="stretch",
        help="Bytes of all tensors on disk; every layer loses the same share.",
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _against_chance(share: float, chance: float) -> str | None:
    return None if math.isnan(share) else f"{(share - chance) * 100:+.0f} pp vs chance"


def _stability_metric(view: View, criterion: Criterion, fraction: Fraction) -> None:
    label = "Overlap across texts"
    note = "Mean share of pruned experts that two calibration texts have in common."
    if criterion.source != "routed":
        st.metric(
            label,
            "100%",
            "reads no text",
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=note,
        )
        return
    if len(view.runs) < 2:
        st.metric(
            label,
            "-",
            "needs two texts",
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=note,
        )
        return
    stats = _loaded(_run_keys(view))
    table = criterion_overlap(criterion, stats, view.gate, fraction)
    overlap, chance = float(table["overlap"].mean()), float(table["chance"].mean())
    st.metric(
        label,
        _percent(overlap),
        _against_chance(overlap, chance),
        border=True,
        height="stretch",
        help=note,
    )


def apply_clicked_variant() -> None:
    """A cell of the map was clicked: take its exponents."""
    chosen = variant_figure.clicked_variant(st.session_state.get(_VARIANT_KEY))
    if chosen is not None:
        apply_exponents(chosen)


def variant_part(view: View, *, on_select: Callable[[], None]) -> None:
    """The 18 variants: how much the pruned set depends on the calibration text."""
    st.markdown(
        f"**Overlap map**: pruned experts that the calibration texts agree on, at "
        f"{view.sparsity} sparsity. Click a cell to take its exponents."
    )
    if len(view.runs) < 2 or view.sparsity_percent == 0:
        st.info(_why_no_overlap(view), icon=":material/info:")
        return
    table = _variant_overlaps(_run_keys(view), view.gate, view.sparsity_percent)
    selected = view.criterion.exponents if view.criterion else None
    st.plotly_chart(
        variant_figure.variant_map(table, selected=selected, dark=is_dark()),
        key=_VARIANT_KEY,
        on_select=on_select,
        selection_mode="points",
        config=PLOTLY_CONFIG,
        theme=None,
        alt=variant_figure.describe(table),
    )
    _data_twin(table, "overlap-map.csv")


def _why_no_overlap(view: View) -> str:
    if view.sparsity_percent == 0:
        return "Nothing is pruned at 0%, so there is nothing to compare. Raise the sparsity."
    return (
        f"Overlap compares calibrations on different texts; {view.model.name} has "
        f"{len(view.runs)}. Calibrate on another text on the **Start** page."
    )


def overlap_part(view: View) -> None:
    """Pairs of texts, and the course over sparsity."""
    kind = switch("Overlap", "overlap", {"pairs": "Between texts", "sparsity": "Against sparsity"})
    if len(view.runs) < 2 or view.sparsity_percent == 0:
        st.info(_why_no_overlap(view), icon=":material/info:")
        return
    if view.criterion is None or view.criterion.source != "routed":
        st.info(
            f"{view.criterion.label if view.criterion else 'This criterion'} reads no text, so "
            "all texts agree. Choose a calibrated criterion.",
            icon=":material/info:",
        )
        return
    if kind == "sparsity":
        _curve_chart(view, view.criterion)
    else:
        _matrix_chart(view, view.criterion)


def _matrix_chart(view: View, criterion: Criterion) -> None:
    fraction = Fraction(view.sparsity_percent, 100)
    pairs = criterion_overlap(criterion, _loaded(_run_keys(view)), view.gate, fraction)
    table, chance = overlap_matrix(pairs, list(view.runs)), float(pairs["chance"].mean())
    st.plotly_chart(
        matrix_figure.overlap_matrix(table, chance=chance, dark=is_dark()),
        key="explore.matrix",
        config=PLOTLY_CONFIG,
        theme=None,
        alt=matrix_figure.describe(table, chance=chance),
    )
    _data_twin(pairs, "overlap.csv")


def _curve_chart(view: View, criterion: Criterion) -> None:
    names = tuple(dict.fromkeys((criterion.name, "frequency", "man")))
    table = _curve(_run_keys(view), names, view.gate)
    share = view.sparsity_percent / 100
    st.plotly_chart(
        curve_figure.overlap_curve(table, sparsity=share, dark=is_dark()),
        key="explore.curve",
        config=PLOTLY_CONFIG,
        theme=None,
        alt=curve_figure.describe(table, sparsity=share),
    )
    _data_twin(table, "overlap-by-sparsity.csv")


def separation_part(view: View, panels: Sequence[maps.Ranked]) -> None:
    """How clear the cut between kept and pruned is, layer by layer; drawn when opened."""
    part = st.expander(
        "Clarity of the cut, layer by layer",
        key="clarity",
        bind="query-params",
        on_change="rerun",
        icon=":material/content_cut:",
    )
    if not part.open:
        return
    with part:
        st.markdown(
            "The gap in rescaled saliency between the last expert kept and the first pruned, and "
            "the share of experts within 0.05 of that boundary."
        )
        if view.sparsity_percent == 0:
            st.info("Nothing is pruned at 0%, so there is no cut.", icon=":material/info:")
            return
        distinct = {ranked.criterion.label: ranked for ranked in panels}
        table = maps.separations(list(distinct.values()), Fraction(view.sparsity_percent, 100))
        st.plotly_chart(
            separation_figures.separation_figure(table, dark=is_dark()),
            key="explore.separation",
            config=PLOTLY_CONFIG,
            theme=None,
            alt=separation_figures.describe(table),
        )
        _data_twin(table, "separation.csv")


def _data_twin(table: pd.DataFrame, name: str) -> None:
    """The numbers behind a chart, to read and to take away; sent when opened."""
    part = st.expander("Show data", key=f"explore.data.{name}", on_change="rerun")
    if not part.open:
        return
    with part:
        st.dataframe(table, hide_index=True)
        st.download_button(
            "Download CSV",
            table.to_csv(index=False),
            file_name=name,
            key=f"explore.csv.{name}",
            on_click="ignore",
        )


def show_command(view: View) -> None:
    """The command line that gives the plan on screen."""
    if view.criterion is None:
        return
    st.markdown("**The same from the command line**")
    st.code(view.request(view.criterion).command(), language=None, wrap_lines=True)
    st.page_link("views/export.py", label="Export this plan", icon=":material/output:")
