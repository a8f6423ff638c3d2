"""Explore, dependence on the corpus: the 18 variants and their exponents, and blends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from analysis.ranking.coverage import fair_blend
from analysis.stats.manifest import Run
from app.charts.chart import StillFigure
from app.charts.corpus_pair import pair_comparison, shown_pair
from app.charts.coverage import blender
from app.charts.listing import CHARTS
from app.charts.overlap import clicked_pair
from app.charts.overlap_map import clicked_variant, frame_style
from app.charts.variant_losses import VARIANT_MAPS, plan_of_variant
from app.choices import BLEND
from app.literal import literal
from app.loaded import Loaded
from app.session import data
from app.session.measured_plan import open_measured
from app.session.state import apply_exponents, apply_shares
from app.widgets.charts import (
    chart_files,
    chart_or_message,
    show_chart,
    show_named,
)
from app.widgets.controls import say_unknown, view_switch
from app.widgets.fates_map import fates_map
from app.widgets.notes import show_command
from pruning.spec.base import command_line, option_words

_CLICKS: Final = "explore.variants.clicks"
_PAIR: Final = "pair"
OTHER_MAPS: Final = "those of *Saliency* and *Side by side* do"


def variants_part(loaded: Loaded, files: DeltaGenerator) -> None:
    """The 18 variants by loss, or by agreement of the corpora; a click applies one.

    Their downloads go to `files`, beside those of the maps.
    """
    views = {"variant-losses": "By loss", "overlap-map": "By agreement of corpora"}
    chosen, loaded = loaded.choices, with_criterion(loaded)
    by_loss = None
    try:
        by_loss = CHARTS["variant-losses"].draw(loaded)
    except UserError:  # too few were measured
        del views["variant-losses"]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("**All variants**; click to apply.", width="content")
        name = view_switch("Variants", "variants", views)
    chart = by_loss if name == "variant-losses" else chart_or_message(name, loaded)
    if chart is None:
        return
    clicks = st.session_state.get(_CLICKS, 0)
    figure = partial(loaded.study.cached, _map_after, name, chart.table, clicks)
    by_overlap = name == "overlap-map"
    click = partial(_apply_clicked_variant, loaded, chart.table)
    show_chart(chart, figure=figure, on_select=click, with_sentence=by_overlap, with_files=False)
    with files:
        chart_files(name, lambda: chart, "Data of the variants")
    if chosen.exponents is not None:
        st.html(f"<style>{frame_style(chosen.exponents, f'.st-key-chart-{name}')}</style>")


def with_criterion(loaded: Loaded) -> Loaded:
    """The same by REAP if it is by the constant variant, of which no command makes a plan."""
    choices = loaded.choices
    if choices.criterion is not None:
        return loaded
    fields = {"criterion": "reap", "corpora": choices.corpora, "gate": choices.gate}
    return loaded.choosing(spec=choices.spec.changed(**fields))


def _map_after(name: str, table: pd.DataFrame, clicks: int, *, dark: bool = False) -> go.Figure:
    """The map after this many clicks.

    A new figure has no selected cell, on which a second click would only deselect it.
    """
    return StillFigure(VARIANT_MAPS[name](table, dark=dark).update_layout(meta=clicks))


def _apply_clicked_variant(loaded: Loaded, table: pd.DataFrame, selection: object) -> None:
    """Show the plan whose loss is in the clicked cell.

    A cell without one stands for its exponents alone.
    """
    chosen = clicked_variant(selection)
    if chosen is None:
        return
    st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1
    if plan := plan_of_variant(table, chosen):
        open_measured(loaded, plan)
    else:
        apply_exponents(chosen)


def pairs_part(loaded: Loaded) -> None:
    """What every two corpora agree on; a click opens a pair."""
    st.markdown(
        "**What two corpora agree on**: the share of the experts pruned on one that the other "
        "prunes too. Click a pair to see its experts."
    )
    if (chart := chart_or_message("overlap", loaded)) is None:
        return
    show_chart(chart, on_select=partial(_open_clicked_pair, list(loaded.corpora_stats)))
    pairs = {
        pair_label(str(row["corpus_a"]), str(row["corpus_b"])): (row["corpus_a"], row["corpus_b"])
        for row in chart.table.to_dict("records")
    }
    say_unknown("Pair", _PAIR, list(pairs))
    if st.session_state.get(_PAIR) not in (None, *pairs):
        st.session_state[_PAIR] = None
    label = st.selectbox(
        "Pair",
        list(pairs),
        index=None,
        key=_PAIR,
        bind="query-params",
        placeholder="Click a cell, or choose two corpora",
        width=360,
    )
    if label not in pairs:
        return
    chosen = loaded.choosing(pair=pairs[label])
    if (chart := chart_or_message("pair-map", chosen)) is not None:
        st.text(chart.alt)
        pair, expert = shown_pair(chosen), chosen.choices.expert
        fates_map(pair_comparison(chosen, pair), pair, key="pair.map", selected=expert)
        chart_files(chart.name, lambda: chart)
    show_named("pair-agreement", chosen, with_sentence=True)


def pair_label(a: str, b: str) -> str:
    """Two corpora in the list and in the URL."""
    return " and ".join(sorted((a, b)))


def _open_clicked_pair(corpora: Sequence[str], selection: object) -> None:
    """Open the pair of the clicked cell."""
    if pair := clicked_pair(selection, corpora):
        st.session_state[_PAIR] = pair_label(*pair)


def effects_part(loaded: Loaded) -> None:
    """The effect of b, alpha and beta on the overlap."""
    compared = replace(loaded, models=_models_to_show(loaded))
    st.markdown("**What each exponent does**: mean overlap of the variants that share its value.")
    show_named("component-effects", compared)


def _models_to_show(loaded: Loaded) -> Mapping[str, Mapping[str, Run]] | None:
    """Every calibrated model with its runs, by name, if chosen."""
    every = data.calibrated_models()
    if len(every) < 2:
        return None
    options = {
        "this": f"Only {literal(loaded.model.name)}",
        "all": f"All {len(every)} calibrated models",
    }
    return every if view_switch("Models", "models", options) == "all" else None


def blend_part(loaded: Loaded) -> None:
    """Coverage of each corpus by the kept experts, and the fair-blend button."""
    st.markdown(
        "**Coverage**: the share of each corpus' saliency that the kept experts hold, mean over "
        "layers. Choose **(blend)** under **Model and plan** to mix the corpora by hand."
    )
    if (chart := chart_or_message("coverage", loaded)) is None:
        return
    worst = chart.table.sort_values("coverage", kind="stable").iloc[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Fair blend",
            icon=":material/balance:",
            key="fair",
            on_click=_make_fair,
            args=(loaded,),
            help="Find the shares that maximise the coverage of the worst-covered corpus; takes "
            "seconds. Coverage is not loss: compare the plan with that of equal shares.",
        )
        if loaded.corpus != BLEND:
            st.button(
                "Equal blend",
                icon=":material/tune:",
                key="equal",
                on_click=apply_shares,
                args=(dict.fromkeys(loaded.runs, 1.0),),
            )
        st.markdown(f"Worst-covered: **{literal(worst['corpus'])}**, {worst['coverage']:.1%}")
    show_chart(chart)
    spec = loaded.spec_by(loaded.choices.ranking_criterion)
    if len(spec.ranking.corpora) > 1:
        request = loaded.study.request(spec)
        show_command(command_line("blend", request.model, *option_words(request)))


def _make_fair(loaded: Loaded) -> None:
    with st.spinner("Finding fair shares"):
        solution = fair_blend(blender(loaded))
    apply_shares(dict(zip(loaded.runs, solution.weights, strict=True)))
