"""Evaluate: results published in papers, with user-defined weights."""

from collections.abc import Collection
from typing import Final

import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from analysis.ranking.published import ABILITIES
from app.charts.names import FULL
from app.charts.published import (
    PAPER_CHARTS,
    TABLES,
    Setting,
    blocks_of,
    leaderboard,
    scores_of,
    source_of,
)
from app.literal import literal
from app.widgets.charts import show_chart, table_with_csv
from app.widgets.controls import choose, say_unknown

PROFILE: Final = "**Capability profile**: score kept per candidate and benchmark."
_WEIGHTS: Final = (0.0, 0.5, 1.0, 2.0, 4.0)


def published_part() -> None:
    """Leaderboard, capability profile and winner map of one published table."""
    st.markdown(
        "Results as reported in the papers, on their models and benchmarks. They do not predict "
        "your checkpoint; they show which criteria are worth trying."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        table = choose(
            "Table",
            tuple(TABLES),
            key="published",
            bind="query-params",
            format_func=TABLES.__getitem__,
            width=420,
        )
        blocks, key = blocks_of(table), f"block.{table}"
        block = choose("Model and sparsity", tuple(blocks), key=key, bind="query-params", width=340)
        setting = blocks[block]
        abilities = {ABILITIES[name] for name in scores_of(setting).columns}
        weights = weight_controls(dict.fromkeys(ABILITIES.values()), abilities, what="ability")
    with st.container(border=True):
        _leaderboard(setting, weights)
    with st.container(border=True):
        st.markdown(PROFILE)
        show_chart(PAPER_CHARTS["capability"].draw(setting))
    with st.container(border=True):
        st.markdown("**Winner map**: the best candidate per benchmark, in every block.")
        show_chart(PAPER_CHARTS["winner-map"].draw(setting))


def weight_controls(
    names: Collection[str], columns: Collection[str], *, what: str
) -> dict[str, float]:
    """Draw a weight slider per name; return the weights. Empty: equal weights."""
    with st.popover("Weights", icon=":material/tune:"):
        st.text(f"How much each {what} counts in the column `average`.")
        for name in names:
            say_unknown(name, f"weight.{name}", _WEIGHTS, "{:g}".format)
        slider_values = {
            name: st.select_slider(
                literal(name.capitalize() if what == "ability" else name),
                _WEIGHTS,
                value=1.0,
                key=f"weight.{name}",
                bind="query-params",
                format_func=lambda weight: f"{weight:g}",
            )
            for name in names
        }
    weights = {name: value if value in _WEIGHTS else 1.0 for name, value in slider_values.items()}
    if not any(weights[name] for name in columns):
        plural = "abilities" if what == "ability" else f"{what}s"
        st.warning(f"All {plural} of this table weigh 0, so equal weights are used.")
        return {}
    return weights


def _leaderboard(setting: Setting, weights: dict[str, float]) -> None:
    table = leaderboard(setting, weights)
    best = table.iloc[0]
    st.markdown(
        f"**Leaderboard**: best average rank {best['candidate']} ({best['average_rank']:.2f}). The "
        f"original model averages {table.set_index('candidate')['average'][FULL]:.3f}."
    )
    table_with_csv(
        table,
        "leaderboard",
        f"{len(table)} candidates by average rank, best first: {best['candidate']}",
        placeholder="-",
        column_config={
            **dict.fromkeys(table.columns, NumberColumn(format="%.3f")),
            "candidate": TextColumn(pinned=True),
            "average_rank": NumberColumn("average rank", format="%.2f"),
        },
    )
    st.text(
        f"{source_of(setting.table)}. Rank 1 is best; ties share the mean of their ranks. The "
        f"table has {len(table.columns) - 1} numeric columns; scroll sideways to see all."
    )
