"""What the plan would cost by each of the 17 variants of S(b, alpha, beta)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.cache_keys import most_results
from analysis.criteria import VARIANTS, unified
from analysis.errors import StatsError
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.overlap_map import Cell, Variant, variant_grid, variant_label, variant_map
from app.choices import CONSTANT
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import PlanLoss, stored_losses
from pruning.search.store import SEARCH
from pruning.spec.spec import PlanSpec

if TYPE_CHECKING:
    from app.loaded import Loaded


@chart("variant-losses", "explore")
def draw(loaded: Loaded) -> Drawing:
    """What each variant costs."""
    store = loaded.study.evaluations
    by_spec = loaded.study.cached(losses_by_spec, store, loaded.model.identity)
    # Also where the plan's own criterion reads no text.
    spec = loaded.spec.changed(
        criterion=unified(1, 1, 1).name, corpora=loaded.choices.corpora, gate=loaded.choices.gate
    )
    table = variant_losses(by_spec, spec)
    if table["mean"].notna().sum() < 2:
        raise StatsError(
            f"Fewer than two variants of this plan were measured on {loaded.model.name}; "
            "`moeprune sweep` measures many."
        )
    selected = loaded.choices.ranking_criterion.exponents
    about = of_corpora(loaded, "loss increase, mean over corpora")
    return Drawing(partial(loss_map, table, selected=selected), table, describe(table), about)


@most_results(4)
def losses_by_spec(store: EvaluationStore, identity: str) -> Mapping[str, PlanLoss]:
    """Spec -> the stored loss of its plan, measured as most were, as it is and on every corpus."""
    return {
        _key(stored_loss.facts.spec): stored_loss
        for stored_loss in stored_losses(store, identity)
        if not (
            stored_loss.way
            or stored_loss.missing
            or stored_loss.is_repaired
            or stored_loss.facts.bits
        )
        # A search began with this spec, which does not make its plan.
        and stored_loss.facts.schedule != SEARCH
    }


def variant_losses(by_spec: Mapping[str, PlanLoss], spec: PlanSpec) -> pd.DataFrame:
    """Table `b, alpha, beta, plan, mean, worst, worst_on`: the spec by each variant.

    Loss increase in nats per token, lower is better; NaN where it was not measured.
    """
    plain = spec.to_json()
    rows = []
    for b, alpha, beta in VARIANTS:
        criterion = unified(b, alpha, beta)
        ranking = {**plain.get("ranking", {}), "criterion": criterion.name}
        if not criterion.uses_gate:
            ranking.pop("gate", None)
        loss = None
        if (b, alpha, beta) != CONSTANT:
            loss = by_spec.get(_key({**plain, "ranking": ranking}))
        rows.append(
            {
                "b": b,
                "alpha": alpha,
                "beta": beta,
                "plan": loss.plan if loss else "",
                "mean": loss.mean if loss else math.nan,
                "worst": loss.worst if loss else math.nan,
                "worst_on": loss.worst_on if loss else "",
            }
        )
    return pd.DataFrame(rows)


def plan_of_variant(table: pd.DataFrame, variant: Variant) -> str:
    """The digest of the measured plan in the cell of a variant; empty if it has none."""
    if "plan" not in table:
        return ""
    return str(table.set_index(["b", "alpha", "beta"])["plan"].get(variant, ""))


def _key(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True, default=str)


def loss_map(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `variant_losses`, see `variant_grid`; colours show the mean."""
    lowest, highest = table["mean"].min(), table["mean"].max()
    span = highest - lowest or 1.0
    cells = {
        (row["b"], row["alpha"], row["beta"]): Cell(
            (highest - row["mean"]) / span,
            "" if math.isnan(row["mean"]) else f"{row['mean']:+z.2f}",
            f"{row['mean']:+z.3f} nats per token, worst {row['worst']:+z.3f} on {row['worst_on']}",
        )
        for row in table.to_dict("records")
    }
    return variant_grid(cells, selected=selected, dark=dark)


# Chart of the variants -> the figure of its table.
VARIANT_MAPS: Final[Mapping[str, Callable[..., go.Figure]]] = {
    "variant-losses": loss_map,
    "overlap-map": variant_map,
}


def describe(table: pd.DataFrame) -> str:
    """The variants that cost least and most."""
    measured = table.dropna(subset="mean").sort_values("mean", kind="stable")
    ends = [
        f"{variant_label((row['b'], row['alpha'], row['beta']))} ({row['mean']:+z.2f})"
        for row in (measured.iloc[0], measured.iloc[-1])
    ]
    return f"Of {len(measured)} measured variants, {ends[0]} costs least and {ends[1]} most."
