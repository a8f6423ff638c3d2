"""Exact damage of removing an expert against a cheap score."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import CRITERIA, Criterion, get_criterion
from analysis.errors import StatsError
from analysis.foreign_text import in_html
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import saliency_grid
from analysis.ranking.overlap import pruned_mask
from analysis.ranking.proxy import damage_table
from analysis.stats.columns import Gate
from analysis.stats.tables import ExpertStats
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.theme import nth_look, paper, series_color, themed
from app.charts.traces import Place, pin_point, series

if TYPE_CHECKING:
    from app.loaded import Loaded

# Codes of `fate`: 2 * pruned by the damage + pruned by the proxy.
FATES: Final = ("both keep", "only the proxy prunes", "only the damage prunes", "both prune")
# The stand-in of arXiv:2606.15716, Figure 3.
PROXY: Final = "gate-ean"


def fate_table(
    stats: ExpertStats, proxy: Criterion, gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """`damage_table` with the column `fate`: what the exact damage and a proxy prune."""
    table = damage_table(stats, proxy, gate)
    by_damage, by_proxy = (
        pruned_mask(saliency_grid(criterion, stats, gate), stats.grid, sparsity)
        for criterion in (get_criterion("damage"), proxy)
    )
    codes = 2 * by_damage.astype(np.int8) + by_proxy.astype(np.int8)
    return table.assign(fate=np.array(FATES)[codes[stats.grid.present]])


@chart("damage-proxy", "explore")
def draw(loaded: Loaded) -> Drawing:
    """How well a score predicts exact damage."""
    corpora = [parse_corpus_weight(text) for text in loaded.choices.corpora][:1]
    damage = CRITERIA["damage"]
    stats = loaded.study.cached(
        choose_stats, damage, loaded.study.store, loaded.model, corpora
    ).stats
    if not isinstance(stats, ExpertStats):
        raise StatsError("The exact damage is measured on routed tokens.")
    # The current variant, else the paper's proxy.
    is_variant = loaded.choices.ranking_criterion.exponents is not None
    proxy = loaded.choices.ranking_criterion if is_variant else get_criterion(PROXY)
    table = fate_table(stats, proxy, loaded.choices.gate, loaded.fraction)
    figure = partial(damage_proxy, table, proxy=proxy.label, marked=loaded.choices.expert)
    about = of_corpora(loaded, stats.manifest.run_id, f"gate {loaded.choices.gate}")
    return Drawing(figure, table, describe(table, proxy=proxy.label), about)


def damage_proxy(
    table: pd.DataFrame, *, proxy: str, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `layer, expert, damage, proxy, fate`: a point per expert, both axes log.

    Experts with damage or proxy 0, such as unrouted ones, are counted and not drawn.
    """
    points = table[(table["damage"] > 0) & (table["proxy"] > 0)]
    dots = []
    for code, (fate, color) in enumerate(zip(FATES, (0, 1, 3, 4), strict=True)):
        rows = points[points["fate"] == fate]
        dots.append(
            series(
                nth_look(code, dark),
                f"{fate}: {int((table['fate'] == fate).sum()):,}",
                (rows["proxy"].to_numpy(np.float32), rows["damage"].to_numpy(np.float32)),
                "layer %{customdata[0]}, expert %{customdata[1]}<br>"
                f"{in_html(proxy)} %{{x:.4g}}, damage %{{y:.4g}}",
                customdata=rows[["layer", "expert"]].to_numpy(np.uint16),
                mode="markers",
                marker={
                    "color": series_color(color, dark),
                    "size": 7,
                    "line": {"color": paper(dark), "width": 0.5},
                },
            )
        )
    if marked is not None:
        marked_points = points[(points["layer"] == marked[0]) & (points["expert"] == marked[1])]
        dots.append(pin_point((marked_points["proxy"], marked_points["damage"]), marked, dark))
    missing = len(table) - len(points)
    experts = "1 expert" if missing == 1 else f"{missing} experts"
    omission = f" (not drawn: {experts} at 0)" if missing else ""
    return themed(
        dots,
        dark,
        x={"title": f"saliency by {in_html(proxy)}{omission}"} | _log_ticks(points["proxy"]),
        y={"title": "exact damage, summed over tokens"} | _log_ticks(points["damage"]),
        height=420,
    )


def describe(table: pd.DataFrame, *, proxy: str) -> str:
    """One sentence: on how many experts proxy and exact damage agree."""
    alike = int(table["fate"].isin((FATES[0], FATES[3])).sum())
    return (
        f"{proxy} and the exact damage decide alike on {alike} of {len(table)} experts "
        f"({alike / len(table):.0%})."
    )


def _log_ticks(values: pd.Series[float]) -> dict[str, Any]:
    """A log axis; beyond two decades with ticks at powers of ten only."""
    decades = float(np.log10(values.max() / values.min())) if len(values) else 0.0
    return {"type": "log", "exponentformat": "power", "dtick": 1 if decades > 2 else None}
