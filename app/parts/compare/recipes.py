"""The Compare page: the controls of two recipes, and what comes of putting them side by side."""

from dataclasses import replace
from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA, RANKABLE, get_criterion, unified
from analysis.ranking.compare import FATES, Comparison
from analysis.stats.tables import GATES
from app.charts.context import BLEND, Context
from app.charts.rank_flow import most_moved
from app.charts.rank_rank import brushed
from app.frame.cards import card
from app.frame.charts import csv_button, selection_of, show
from app.frame.controls import choose, one_of
from app.frame.notes import inform
from app.frame.sidebar import blend_sliders, corpus_options, sparsity_slider
from app.session import data
from app.session.needed import what_is_missing
from app.session.state import chosen_shares, corpora_of
from pruning.planning.comparing import CompareRequest
from pruning.requests.plan import PlanRequest

SIDES: Final = ("a", "b")
DEFAULT_CRITERIA: Final = {"a": "reap", "b": "man"}
_CRITERIA: Final = tuple(dict.fromkeys((*CRITERIA, *(unified(*each).name for each in RANKABLE))))
# S(1,1,2) says its exponents by name.
_LABELS: Final = {name: get_criterion(name).label for name in _CRITERIA} | {
    name: f"{each.label}  {each.exponents}" for name, each in CRITERIA.items() if each.exponents
}
_ROWS_SHOWN: Final = 200
_BRUSHED: Final = "rank-rank"
_WIDTH: Final = 190


def swap() -> None:
    """A becomes B."""
    state = st.session_state
    for name in ("criterion", "text", "gate", "sparsity"):
        first, second = (f"{side}_{name}" for side in SIDES)
        if first in state and second in state:
            state[first], state[second] = state[second], state[first]


def recipe_controls(context: Context) -> CompareRequest:
    """Draw the controls of both recipes; what they say."""
    chosen = []
    for side in SIDES:
        with st.container(border=True):
            chosen.append(_controls(context, side))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.button("Swap A and B", icon=":material/swap_horiz:", on_click=swap, key="swap")
        if any(corpus == BLEND for _, corpus, _, _ in chosen):
            with st.popover("Shares of the blend", icon=":material/tune:"):
                blend_sliders(context.runs)
    return CompareRequest(*(_request(context, *each) for each in chosen))


def _controls(context: Context, side: str) -> tuple[str, str, str, int]:
    """Draw the controls of a recipe; criterion, corpus, gate and percentage."""
    letter = side.upper()
    # Rows that wrap: beside the sidebar of a narrow window there is room for one control.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        criterion = choose(
            f"Criterion {letter}",
            _CRITERIA,
            DEFAULT_CRITERIA[side],
            key=f"{side}_criterion",
            bind="query-params",
            format_func=lambda name: _LABELS.get(name, name),
            width=_WIDTH,
        )
        reads_text = get_criterion(criterion).source == "routed"
        corpus = choose(
            f"Calibration {letter}",
            corpus_options(context.runs) or [""],
            key=f"{side}_text",
            bind="query-params",
            disabled=not reads_text,
            help=None if reads_text else "This criterion reads no text.",
            width=_WIDTH,
        )
        gate = st.segmented_control(
            f"Gate weights {letter}",
            GATES,
            default=GATES[0],
            key=f"{side}_gate",
            bind="query-params",
            required=True,
            format_func=str.capitalize,
            width=_WIDTH,
        )
        percent = sparsity_slider(context.model, f"Sparsity {letter}", f"{side}_sparsity", _WIDTH)
    return criterion, corpus, gate or GATES[0], percent


def has_statistics(context: Context, request: PlanRequest) -> bool:
    """Whether a recipe can rank; if not, says what is missing."""
    missing = what_is_missing(context, get_criterion(request.criterion))
    if missing is not None:
        inform(missing)
    return missing is None


def _request(context: Context, name: str, corpus: str, gate: str, percent: int) -> PlanRequest:
    """The selection that the command line would be given."""
    criterion = get_criterion(name)
    weights = chosen_shares(context.runs) if corpus == BLEND else {}
    return PlanRequest(
        model=data.shown_model(context.model),
        criterion=criterion.name,
        corpora=corpora_of(corpus, weights) if criterion.source == "routed" else (),
        gate="renormalized" if gate == "renormalized" and criterion.uses_gate else "applied",
        sparsity=f"{percent}%",
        stats_dir=data.shown_stats_dir(),
    )


def metrics(comparison: Comparison) -> None:
    """Four numbers: decisions, sets, orders, experts."""
    _, only_a, only_b, neither = map(comparison.count, FATES)
    either = neither + only_a + only_b
    taus = comparison.by_layer["kendall_tau"].dropna()
    beyond = comparison.agreement - comparison.chance_agreement
    with st.container(horizontal=True):  # wraps where the window is narrow
        card(
            "Equal decisions",
            f"{comparison.agreement:.0%}",
            f"{beyond * 100:+.0f} pp vs chance",
            note="Share of all experts that both keep or both prune.",
            delta_color="normal",
            delta_arrow="auto",
        )
        card(
            "Jaccard of the pruned",
            f"{comparison.jaccard:.2f}" if either else "-",
            f"{neither} of {either} experts" if either else "nothing is pruned",
            note="Pruned by both, divided by pruned by either.",
        )
        card(
            "Kendall tau",
            f"{taus.mean():.2f}" if len(taus) else "-",
            f"{taus.min():.2f} to {taus.max():.2f} over layers"
            if len(taus)
            else "nothing to order",
            note="Agreement of the two orders, -1 to 1; the mean over layers. Ties count for "
            "neither.",
        )
        card(
            "Decided differently",
            f"{only_a + only_b}",
            f"A {only_a}, B {only_b}",
            note="Experts that only one recipe keeps: how many A keeps alone, how many B.",
        )


def show_charts(context: Context) -> None:
    """The map across the page, the two others below it."""
    with st.container(border=True):
        st.markdown("**Who keeps what**: one cell an expert, layer 0 on top.")
        show("kept-by", context)
    left, right = st.columns([3, 2])
    with left, st.container(border=True):
        st.markdown(
            "**Rank against rank**: the first to keep is at the top left. Drag over a region to "
            "list its experts below."
        )
        show(_BRUSHED, context, brush=True)
    with right, st.container(border=True):
        st.markdown("**Layer by layer**: 1 is full agreement.")
        show("agreement", context)


def rank_flow(context: Context) -> Context:
    """The ranks of one layer under both recipes; the context with the layer that is chosen."""
    st.markdown("**Who crosses the cut in one layer**")
    place = context.expert
    usual = place[0] if place else most_moved(context.comparison)
    words = f"layer {usual}: " + (f"of expert {place[1]}" if place else "least agreement")
    options = ["", *(str(layer.index) for layer in context.comparison.grid.layers)]
    chosen = st.selectbox(
        "Layer",
        options,
        key="layer",
        bind="query-params",
        format_func=lambda layer: f"layer {layer}" if layer else words,
        width=260,
    )
    context = replace(context, layer=int(one_of(chosen, options, "") or usual))
    show("rank-flow", context, said=True)
    return context


def listed_experts(comparison: Comparison) -> None:
    """The experts in the brushed region; without one, those that only one recipe keeps."""
    table = brushed(comparison.table(), selection_of(_BRUSHED))
    if table is None:
        table = comparison.disagreements()
        st.markdown("**Experts that only one recipe keeps**, widest apart first; rank 1 is first.")
        name, what = "disagreements", "experts that only one recipe keeps"
    else:
        st.markdown("**Experts in the region**; double-click the chart to see those that differ.")
        name, what = "region", "experts in the region"
    if table.empty:
        inform("The recipes keep the same experts.")
        return
    shown = table.head(_ROWS_SHOWN)
    st.dataframe(
        shown.assign(rank_a=shown["rank_a"] + 1, rank_b=shown["rank_b"] + 1),
        hide_index=True,
        alt=f"{len(table)} {what}",
        column_config={
            name: st.column_config.NumberColumn(label, format="%.4g")
            for name, label in (("saliency_a", "saliency A"), ("saliency_b", "saliency B"))
        }
        | {"kept_by": "kept by", "rank_a": "rank A", "rank_b": "rank B"},
    )
    if len(table) > _ROWS_SHOWN:
        st.text(f"The first {_ROWS_SHOWN} of {len(table)}; the file has all.")
    csv_button(table, name)
    st.text("In the file ranks count from 0, as in those of the command line.")
