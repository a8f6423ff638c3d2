"""The Compare page: controls of two recipes, and charts of their differences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import streamlit as st
from streamlit.column_config import NumberColumn

from analysis.ranking.compare import FATES, Comparison
from analysis.stats.tables import GATES
from app.charts.context import BLEND, Context
from app.frame.charts import ranks_from_one, show, show_table
from app.frame.controls import choose
from app.frame.notes import against_chance, card, inform
from app.frame.sidebar import blend_sliders, corpus_options
from app.literal import literal
from app.session.data import losses_of, what_is_missing
from app.session.state import apply_preset, chosen_shares, corpora_of
from pruning.evaluate.quality import loss_of
from pruning.planning.choice import possible_percents
from pruning.planning.comparing import SpecPair
from pruning.planning.make import make_plan

# Fields of B that may differ besides the criterion -> control.
_SIDE_B: Final = {"corpus": "b_text", "gate": "b_gate", "sparsity": "b_sparsity"}
_ROWS_SHOWN: Final = 200


def swap(context: Context) -> None:
    """Swap A and B."""
    state, a = st.session_state, context.both.a
    side_a = {name: state.get(name) for name in ("corpus", "gate", "sparsity")}
    apply_preset(str(state.get("baseline")))
    state["baseline"] = a.plan.ranking.criterion
    for name, key in _SIDE_B.items():
        if state.get(key, "") != "":
            state[name], state[key] = state[key], side_a[name]


def recipe_controls(context: Context) -> SpecPair:
    """Draw the controls of B; return both plans. A is the plan."""
    options: dict[str, Sequence[Any]] = {
        "corpus": corpus_options(context.runs),
        "gate": GATES,
        "sparsity": possible_percents(context.model),
    }
    side_b = {
        name: choose(
            f"{name.capitalize()} of B",
            ("", *options[name]),
            key=key,
            bind="query-params",
            format_func=lambda value: str(value) or "as A",
            width=150,
        )
        for name, key in _SIDE_B.items()
    }
    st.button(
        "Swap A and B", key="swap", icon=":material/swap_horiz:", on_click=swap, args=(context,)
    )
    corpora = context.corpora
    if side_b["corpus"]:
        corpora = corpora_of(side_b["corpus"], chosen_shares(context.runs))
    if side_b["corpus"] == BLEND != context.corpus:
        with st.popover("Shares of the blend", icon=":material/tune:"):
            blend_sliders(context.runs)
    b = replace(context, corpora=corpora, gate=side_b["gate"] or context.gate)
    if side_b["sparsity"]:
        b = replace(b, spec=b.spec.changed(sparsity=f"{side_b['sparsity']}%"))
    return SpecPair(context.request_by(context.ranking_criterion), b.request_by(context.baseline))


def has_statistics(context: Context) -> bool:
    """Whether both recipes can rank; shows what is missing unless the plan bar does."""
    for criterion in (context.ranking_criterion, context.baseline):
        if (missing := what_is_missing(context, criterion)) is not None:
            if context.shown is not None or criterion is context.baseline:
                inform(missing)
            return False
    return True


def conclusion(context: Context) -> None:
    """Measured losses of both, and how often they decide alike."""
    losses, words = losses_of(context.model), []
    for name, chosen in zip(context.names, (context.first, context.second), strict=True):
        loss = loss_of(losses, context.keep(make_plan, chosen, chosen.spec).plan.digest)
        words.append(f"{literal(name)}: {literal(loss.words) if loss else 'loss not measured'}")
    comparison, caveat = context.comparison, ""
    if context.schedule.name != "uniform" or (context.shown and context.shown.file):
        caveat = " Both use the uniform schedule here, unlike the plan above."
    st.markdown(
        f"**A** {words[0]}; **B** {words[1]}. They decide **{comparison.agreement:.0%}** of the "
        f"experts alike, two random choices {comparison.chance_agreement:.0%}.{caveat}"
    )


def comparison_metrics(comparison: Comparison) -> None:
    """Four numbers: decisions, sets, orders, experts."""
    _, only_a, only_b, neither = map(comparison.count, FATES)
    either = neither + only_a + only_b
    taus = comparison.by_layer["kendall_tau"].dropna()
    with st.container(horizontal=True):  # wraps where the window is narrow
        card(
            "Equal decisions",
            *against_chance(comparison.agreement, comparison.chance_agreement),
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
    """The map, and the agreement of each layer below."""
    with st.container(border=True):
        st.markdown("**Who keeps what**: one cell per expert, layer 0 on top.")
        show("kept-by", context)
    with st.container(border=True):
        st.markdown("**Layer by layer**: 1 is full agreement.")
        show("agreement", context)


def listed_experts(comparison: Comparison) -> None:
    """Table of the experts that only one recipe keeps."""
    table = comparison.disagreements()
    st.markdown("**Experts that only one recipe keeps**, largest difference first.")
    if table.empty:
        inform("The recipes keep the same experts.")
        return
    show_table(
        table,
        "disagreements",
        f"{len(table)} experts that only one recipe keeps",
        shown=ranks_from_one(table.head(_ROWS_SHOWN)),
        column_config={
            "kept_by": "kept by",
            "rank_a": "rank A",
            "rank_b": "rank B",
            "saliency_a": NumberColumn("saliency A", format="%.4g"),
            "saliency_b": NumberColumn("saliency B", format="%.4g"),
        },
    )
    if len(table) > _ROWS_SHOWN:
        st.text(f"The first {_ROWS_SHOWN} of {len(table)}; the file has all.")
    st.text("Ranks in the file count from 0, as on the command line.")
