"""Loss against size: experts removed, fewer bits, and both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.sizes import byte_unit, size_text
from app.charts.theme import ink, muted, primary, themed, this_plan
from app.charts.traces import annotation, padded, stroke
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan
from pruning.planning.front_words import ORIGINAL, describe, named, range_text
from pruning.planning.predicted import PredictedLoss
from pruning.records.front import FRONT_COLUMNS, OF_PLANS, Front, stored_front
from pruning.records.plan_facts import plan_facts
from pruning.records.quality import PlanLoss, loss_of

if TYPE_CHECKING:
    from app.loaded import Loaded

# What a mark stands for -> its symbol; hollow where the loss is predicted.
_KINDS: Final = {
    ORIGINAL: "star",
    "pruned": "circle",
    "fewer bits": "square",
    "pruned, fewer bits": "diamond",
}


_CLICK: Final = "Click to show this plan."
_NARROWEST: Final = 0.1  # nats: losses that hardly differ are no different ticks
_RANDOM: Final = {False: "rgba(201, 160, 90, 0.25)", True: "rgba(240, 190, 110, 0.18)"}


@chart("loss-by-size", "start")
def draw(loaded: Loaded) -> Drawing:
    """What each size costs: fewer experts, fewer bits, or both."""
    store = loaded.study.evaluations
    front = loaded.study.cached(stored_front, store, loaded.model)
    losses = loaded.study.losses
    rows = front.table
    is_shown = pd.Series(False, index=rows.index)
    if loaded.shown:
        plan = loaded.shown.plan
        rows = _with_shown(loaded, front, plan, loss_of(losses, plan.digest))
        is_shown = (rows["plan"] == _of_row(plan)) & (rows["bits"] == plan.named_bits)
    table = named(rows).assign(is_shown=is_shown)
    about = made_by(
        model_fact(loaded),
        "loss increase, mean over corpora",
        f"measured: {front.losses[0].count.interval_words} (the corpus with the fewest)",
        "bits are simulated",
    )
    chance = random_losses(losses)
    return Drawing(partial(front_figure, table, chance), table, describe(front), about)


def _with_shown(
    loaded: Loaded, front: Front, plan: PruningPlan, loss: PlanLoss | None
) -> pd.DataFrame:
    """The table of the front with the plan on screen, if its loss is known at all."""
    exported = _of_row(plan)
    if loss and not (loss.way or loss.missing):
        return front.with_plan(loss, exported)
    if loaded.predicted and not front.has(exported, plan.named_bits):
        return front.with_row(_predicted_row(loaded, plan, loaded.predicted))
    return front.table


def _of_row(plan: PruningPlan) -> str:
    """The digest in the row of a plan: of its export, or its own with bits by layer."""
    return plan.digest if plan.layer_bits else plan.in_own_bits.digest


def _predicted_row(loaded: Loaded, plan: PruningPlan, loss: PredictedLoss) -> dict[str, Any]:
    """The row of FRONT_COLUMNS of a plan that was not measured."""
    columns = plan_facts(plan, loaded.model).columns
    return {
        "plan": plan.in_own_bits.digest,
        **{name: value for name, value in columns.items() if name in FRONT_COLUMNS},
        "mean": loss.mean,
        "low": loss.low,
        "high": loss.high,
        "range": OF_PLANS,
        "worst": loss.worst,
        "worst_on": loss.worst_on,
        "is_measured": False,
    }


def front_figure(
    table: pd.DataFrame,
    chance: pd.DataFrame,
    *,
    clicks: Mapping[str, str] | None = None,
    dark: bool = False,
) -> go.Figure:
    """Figure of a `named` table with `is_shown`: loss increase over bytes, the front as steps.

    `chance` is a table of `random_losses`. `clicks`: digest of a plan -> why a click on it does
    not show it, empty if it does; None where no mark can be clicked.
    """
    unit, unit_name = byte_unit(float(table["bytes"].max()))
    ends = table["bytes"].min() / unit, table["bytes"].max() / unit
    rows = _with_clicks(table.assign(x=table["bytes"] / unit), clicks)
    best = rows[rows["on_front"]]
    steps = stroke(best["x"], best["mean"], primary(dark), 2, line_shape="hv")
    steps.update(name="least measured loss", showlegend=True)
    marks = [
        _marks(rows[(rows["kind"] == kind) & (rows["is_measured"] == is_measured)], kind, dark)
        for kind, is_measured in product(_KINDS, (False, True))  # what is measured lies on top
    ]
    own_row = rows[rows["is_shown"]].head(1)
    is_hollow = not own_row["is_measured"].all()
    symbol, edge = ("circle-open", {"width": 3}) if is_hollow else ("circle", {})
    ring = {"symbol": symbol, "size": 15, "color": this_plan(dark), "line": edge}
    here = go.Scatter(
        x=own_row["x"],
        y=own_row["mean"],
        mode="markers",
        marker=ring,
        name="this plan, predicted" if is_hollow else "this plan",
        hoverinfo="skip",
    )
    return themed(
        [
            *_random_band(chance, unit, dark),
            steps,
            *(trace for trace in marks if trace.x.size),
            here,
        ],
        dark,
        x={
            "title": f"weights, {unit_name}",
            "showgrid": False,
            "tickformat": ".3~g",
            "range": padded(ends, least=0),
        },
        y={
            "title": "loss increase, nats per token",
            "tickformat": ".2~f",
            "range": padded((0, *table["mean"]), narrowest=_NARROWEST),
        },
        height=520,
        annotations=_labels(rows, own_row, dark),
    )


def _with_clicks(table: pd.DataFrame, clicks: Mapping[str, str] | None) -> pd.DataFrame:
    """Add `is_clickable`, and `click`: what a click does, or why it does nothing, in HTML."""
    reasons = [(clicks or {}).get(plan) for plan in table["plan"]]
    words = [
        "" if why is None else "".join(f"<br>{in_html(line)}" for line in wrap(why or _CLICK, 60))
        for why in reasons
    ]
    return table.assign(click=words, is_clickable=[why == "" for why in reasons])


def _marks(rows: pd.DataFrame, kind: str, dark: bool) -> go.Scatter:
    """Marks of one kind, all measured or all predicted."""
    colors = {"pruned": primary(dark), "fewer bits": ink(dark), ORIGINAL: ink(dark)}
    is_measured = bool(rows["is_measured"].all())
    symbol = _KINDS[kind] + "-open" * (not is_measured)
    look = {"symbol": symbol, "size": 9, "color": colors.get(kind, muted(dark))}
    notes = [
        f"{in_html(row['candidate'])}<br>{size_text(row['bytes'])}: {row['mean']:+z.3f}"
        f" ({range_text(row) or 'interval unknown'}: {row['range']}), "
        f"{'measured' if row['is_measured'] else 'predicted'}"
        f"<br>worst {row['worst']:+z.3f} on {in_html(row['worst_on'])}{row['click']}"
        for row in rows.to_dict("records")
    ]
    plans = rows[["plan", "bits"]].to_numpy().tolist()
    return go.Scatter(
        x=rows["x"],
        y=rows["mean"],
        mode="markers",
        name=kind if is_measured else "predicted",
        showlegend=is_measured or kind != "pruned",  # the plan on screen has its own name
        marker=look,
        text=notes,
        # A mark without a plan is none that a click finds.
        customdata=[
            plan if can_click else []
            for plan, can_click in zip(plans, rows["is_clickable"], strict=True)
        ],
        hovertemplate="%{text}<extra></extra>",
    )


def _random_band(chance: pd.DataFrame, unit: float, dark: bool) -> list[go.Scatter]:
    """What random choices cost, from its lowest to its highest draw."""
    if len(chance) < 2:
        return []
    sizes = chance["bytes"] / unit
    return [
        go.Scatter(
            x=[*sizes, *sizes[::-1]],
            y=[*chance["low"], *chance["high"][::-1]],
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=_RANDOM[dark],
            name="random experts",
            hoverinfo="skip",
        )
    ]


def random_losses(losses: Iterable[PlanLoss]) -> pd.DataFrame:
    """Table `bytes, low, high`: the draws of Random at each size, from the original's; see `draw`.

    Loss increase in nats per token, mean over corpora, of the draw that loses least and most.
    """
    draws = defaultdict(list)
    for loss in losses:
        is_original = not (loss.facts.removed or loss.facts.bits)
        is_random = loss.is_random and not (loss.is_repaired or loss.facts.bits)
        is_random &= loss.facts.granularity == EXPERT_GRANULARITY
        if (is_random or is_original) and not (loss.way or loss.missing):
            draws[int(loss.facts.bytes_after or 0)].append(loss.mean)
    rows = [(size, min(means), max(means)) for size, means in sorted(draws.items())]
    return pd.DataFrame(rows, columns=["bytes", "low", "high"])


def clicked_plan(event: object) -> tuple[str, str]:
    """The plan that was selected in the chart: its digest as exported, and its bits.

    Both are empty for none.
    """
    match event:
        case {"selection": {"points": [*_, {"customdata": [str(digest), str(bits)]}]}}:
            return digest, bits
    return "", ""


def _labels(rows: pd.DataFrame, shown: pd.DataFrame, dark: bool) -> list[dict[str, object]]:
    """Names of the original in the bits that people ask for, and of the plan on screen."""
    references = rows[(rows["removed"] == 0) & rows["bits"].isin(["", "8", "4"])]
    texts = [*references.to_dict("records"), *shown.to_dict("records")]
    return [
        annotation(
            row["x"],
            row["mean"],
            in_html(row["candidate"].removeprefix(f"{ORIGINAL}, ")),  # short, for a phone
            yshift=16 if row["removed"] else -16,
            font={"color": ink(dark)},
        )
        for row in texts
    ]
