"""One expert: its numbers on every corpus, its rank under every criterion; unrouted experts."""

import pandas as pd
import streamlit as st

from app.charts.context import Context
from app.frame.charts import show_table
from app.frame.notes import inform
from app.literal import literal_in_badge
from app.session import data
from app.session.chosen_expert import Place, chosen_expert
from app.tables.experts import Sources, expert_means, expert_ranks, expert_sums, rank_summary

_NO_CALIBRATION = "No calibration yet: see the **Start** page."


def expert_part(context: Context) -> None:
    """All numbers of the chosen expert, then the unrouted experts."""
    place = chosen_expert(context.model.layers)
    if place is None:
        inform("Click an expert in the map above, or move with the arrow keys and press Enter.")
    else:
        st.markdown(f"**Layer {place[0]}, expert {place[1]}**")
        _measured(context, place, "expert")
        _ranks(context, place, "expert")
    _never_routed(context)


def expert_drawer(context: Context) -> None:
    """The same in a drawer on any page."""
    place = chosen_expert(context.model.layers)
    if place is None:
        return

    def content() -> None:
        _measured(context, place, "drawer")
        _ranks(context, place, "drawer")

    title = f"Layer {place[0]}, expert {place[1]}"
    st.dialog(title, width="medium", position="right")(content)()


def _measured(context: Context, place: Place, where: str) -> None:
    st.markdown("**On each corpus**")
    stats = context.calibrated
    if not stats:
        inform(_NO_CALIBRATION)
        return
    means = expert_means(stats, *place)
    name = f"layer {place[0]}, expert {place[1]}"
    silent = [corpus for corpus in stats if means.set_index("number")[corpus].iloc[0] == 0]
    if silent:
        texts = literal_in_badge(", ".join(silent))
        st.badge(f"no token of {texts} reached it", icon=":material/warning:", color="orange")
    show_table(means, f"{where}-means", f"Means of {name} by corpus")
    with st.expander("All stored sums", key=f"data.{where}-sums", on_change="rerun") as sums:
        if sums.open:
            show_table(expert_sums(stats, *place), f"{where}-sums", f"Sums of {name} by corpus")


def _ranks(context: Context, place: Place, where: str) -> None:
    count = next(each.num_experts for each in context.model.layers if each.index == place[0])
    st.markdown(
        f"**Rank under every criterion**, of {count}; 1 is kept first. Criteria that read no "
        "corpus rank the same on each."
    )
    run = data.weight_run(context.model)
    weights = None if run is None else data.weight_stats(run)
    sources = Sources(context.calibrated, weights, context.model.layers)
    ranks = context.keep(expert_ranks, sources, context.gate, place)
    summary = rank_summary(ranks, context.fraction)
    if context.sparsity_percent == 0:  # nothing is pruned, or the page has no sparsity
        summary = summary.drop(columns="kept")
    show_table(
        summary.rename(columns={"kept": f"kept at {context.sparsity}"}),
        f"{where}-ranks",
        f"Ranks of layer {place[0]}, expert {place[1]} under {len(summary)} criteria",
    )


def _never_routed(context: Context) -> None:
    st.markdown("**Experts that no calibration token reached**")
    if not context.runs:
        inform(_NO_CALIBRATION)
        return
    lacking = [
        each.table.loc[each.table["num_tokens"] == 0, ["layer", "expert"]].assign(corpora=corpus)
        for corpus, each in context.calibrated.items()
    ]
    by_expert = pd.concat(lacking).groupby(["layer", "expert"])["corpora"]
    table = by_expert.agg(", ".join).reset_index()
    if table.empty:
        st.badge("every expert routed on every corpus", icon=":material/check:", color="green")
        return
    show_table(table, "never-routed", f"{len(table)} experts that some corpus never reached")
