"""Evaluate: rank the plan on screen among all candidates by loss over all corpora."""

from collections.abc import Hashable, Mapping
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.charts.context import Context
from app.charts.evaluations import series_name
from app.frame.charts import csv_button
from app.frame.notes import inform
from app.parts.evaluate.sweep_fields import share_control
from app.parts.losses import loss_of_plan, losses_table
from app.session.records import losses_of
from pruning.evaluate.by_sample import difference
from pruning.evaluate.quality import (
    PlanLoss,
    candidates_at,
    full_losses,
    losses_at,
    random_at,
)
from pruning.sizes import format_bytes

_ORDER: Final = ("mean", "worst", "candidate", "worst_on", "away", "size", "num_samples")
_COLUMNS: Final = {
    "mean": st.column_config.NumberColumn(width=64, format="%+.3f", help="Mean over the corpora."),
    "worst": st.column_config.NumberColumn(width=64, format="%+.3f"),
    "worst_on": st.column_config.TextColumn("worst on"),
    "num_samples": st.column_config.NumberColumn("samples"),
    "away": st.column_config.TextColumn(
        "vs best",
        help="Too close to call: the 95% bootstrap interval of the difference contains 0.",
    ),
}


def candidates_part(context: Context) -> None:
    """Loss per corpus of the plan, the original, Random and the best; then all candidates."""
    losses = losses_of(context.model)
    shares = sorted({round(each.facts.removed or 0.0, 4) for each in losses} - {0.0})
    if not shares:
        return
    mine, _ = loss_of_plan(context)
    words = {f"{100 * share:.4g}%": share for share in shares}
    own = "" if mine is None else f"{100 * round(mine.facts.removed or 0.0, 4):.4g}%"
    with st.container(width=400):
        share = share_control(words, "removed", own)
    granularity = context.plan.granularity
    table = candidates_at(losses, share, granularity)
    if table.empty:
        inform(f"No evaluations at a sparsity of {share:.0%} of the expert weights.")
        return
    known = {each.plan: each for each in losses_at(losses, share) if not each.way}
    best = known.get(next((plan for plan in table["plan"] if plan in known), ""))
    chance = random_at(losses, share, granularity)
    added = {} if mine is None else {"your plan": mine.change}
    if chance is not None:
        added[f"Random ({chance.draws} draws)"] = chance.change
    if best is not None and best is not mine:
        added["the best"] = best.change
    st.markdown(
        f"**Added loss at {share:.0%} sparsity**, in nats per token on held-out corpora; lower is "
        "better."
    )
    losses_table(full_losses(losses), added)
    table = table.assign(
        candidate=_names(table, {each.plan: each.created_at for each in losses}),
        away=[_away(best, known.get(plan)) for plan in table["plan"]],
        size=table["bytes"].map(format_bytes),
    )
    own = mine.plan if mine else ""
    _table(table[table["way"] == ""], own)
    if (others := table[table["way"] != ""]).empty:
        return
    with st.expander("Measured on other samples or in another dtype"):
        for way, rows in others.groupby("way"):
            st.text(str(way))
            _table(rows, own)


def _table(table: pd.DataFrame, own: str) -> None:
    """Table of candidates; plan `own` is labelled as yours."""
    way = str(table["way"].iloc[0]) if len(table) else ""
    names = table["candidate"]
    st.dataframe(
        table.assign(candidate=names.mask(table["plan"] == own, "yours: " + names)),
        hide_index=True,
        # Key numbers come first, so that a phone shows them.
        column_order=_ORDER,
        column_config=_COLUMNS,
        key=f"candidates.{way}",
        alt=f"{len(table)} candidates by mean added loss, lowest first",
    )
    csv_button(table, f"candidates{way and '-other'}")


def _names(table: pd.DataFrame, times: Mapping[str, str]) -> list[str]:
    """Display names; later candidates of the same name include their plan id.

    `times` maps plan -> time of measurement.
    """
    names = pd.Series([_name(row) for row in table.to_dict("records")], index=table.index)
    in_time = table["plan"].iloc[[*table["plan"].map(times).fillna("").argsort(kind="stable")]]
    first = in_time.groupby(names).transform("first").reindex(table.index)
    later = ", plan " + table["plan"].str[:8]
    return names.where(table["plan"] == first, names + later).tolist()


def _name(row: Mapping[Hashable, Any]) -> str:
    """Display name of a candidate; Random with its number of draws."""
    return series_name(row) + (f" ({row['draws']} draws)" if row["draws"] > 1 else "")


def _away(best: PlanLoss | None, other: PlanLoss | None) -> str:
    """Loss of a plan relative to the best, if the difference is significant."""
    if best is None or other is None or other.missing:
        return ""
    if other is best:
        return "best"
    apart = difference(other, best)
    if apart is None:
        return f"{other.mean - best.mean:+.3f}"
    return f"{apart.mean:+.3f}" if apart.is_clear else "too near to tell"
