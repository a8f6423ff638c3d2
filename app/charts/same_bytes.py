"""Candidates of the same size: what each loses on each text, neurons beside whole experts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.errors import StatsError
from app.charts.chart import Chart, Drawing, made_by
from app.charts.context import Context
from app.charts.names import criterion_label
from app.charts.theme import apply_theme, muted, plain, series_color
from pruning.evaluate.record import EvaluationRecord, EvaluationStore, evaluation_table
from pruning.plan import ATOMIC_GRANULARITY

WORDS: Final = {"atomic": "neurons", "expert": "whole experts"}
CLAIMED: Final = "HEAPr, neurons all layers"
_LOOKS = {"atomic": (0, "circle"), "expert": (1, "square")}


SAME_BYTES_COLUMNS: Final = (
    *("corpus", "granularity", "candidate", "removed", "bytes", "loss", "full", "change"),
    *("esap", "esap_low", "esap_high"),
)
# Sizes that differ by no more are called the same: whole experts take their router rows along.
_SAME: Final = 0.01
_SPREAD: Final = {
    "neurons by global": "all layers",
    "neurons by layer": "each layer",
    "neurons by expert": "each expert",
    "global": "all layers",
    "uniform": "even over layers",
}


def same_bytes_table(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """Table of SAME_BYTES_COLUMNS: neurons and whole experts of the same size, size by size.

    Those that were ranked on the text that they were measured on, or on none; of each text the
    sizes that both kinds of plans reach, within 1% of the checkpoint's bytes. Sorted by text and
    change of the loss; `removed` is the share of expert weights that goes, of the plans of neurons.
    """
    table = evaluation_table(records)
    wide = table.pivot_table(index="evaluation", columns="measure", values="mean")
    rows = table[(table["measure"] == "nll") & (table["removed"] > 0)]
    rows = rows[(rows["calibrated_on"] == rows["corpus"]) | (rows["calibrated_on"] == "")]
    esap = table[table["measure"] == "esap"].set_index("evaluation")[["low", "high"]]
    rows = rows.assign(
        candidate=[
            _candidate(*each) for each in zip(*(rows[name] for name in _NAMED), strict=True)
        ],
        loss=rows["mean"],
        change=rows["mean"] - rows["full"],
        esap=rows["evaluation"].map(wide["esap"]) if "esap" in wide else np.nan,
        esap_low=rows["evaluation"].map(esap["low"]),
        esap_high=rows["evaluation"].map(esap["high"]),
    )
    rows = rows.sort_values("created_at").drop_duplicates(
        ["corpus", "candidate", "bytes"], keep="last"
    )
    parts = [
        part.assign(removed=removed)
        for _, block in rows.groupby("corpus")
        for removed, part in _sizes(block)
    ]
    if not parts:
        return pd.DataFrame(columns=list(SAME_BYTES_COLUMNS))
    found = pd.concat(parts)[list(SAME_BYTES_COLUMNS)]
    return found.sort_values(["removed", "corpus", "change"], kind="stable", ignore_index=True)


_NAMED: Final = ("criterion", "schedule", "granularity")


def _candidate(criterion: str, schedule: str, granularity: str) -> str:
    what = "neurons" if granularity == ATOMIC_GRANULARITY else "experts"
    return f"{criterion_label(criterion)}, {what} {_SPREAD.get(schedule, schedule)}"


def _sizes(block: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """Removed share of each size of plans of neurons, with all candidates of about that size."""
    neurons = block[block["granularity"] == ATOMIC_GRANULARITY]
    found = []
    for removed, nbytes in neurons.groupby("removed")["bytes"].max().items():
        near = block[(block["bytes"] - nbytes).abs() <= _SAME * nbytes]
        if len(set(near["granularity"])) > 1:
            found.append((round(float(str(removed)), 4), near))
    return found


def _draw(context: Context) -> Drawing:
    records = EvaluationStore(context.store.directories).records(context.model.identity)
    table = same_bytes_table(records)
    if table.empty:
        raise StatsError(
            f"{context.model.name} has no evaluations of neurons and of whole experts of the same "
            "size; see `moeprune evaluate`."
        )
    removed = table["removed"].iloc[0] if context.removed is None else context.removed
    rows = table[table["removed"] == removed].reset_index(drop=True)
    return Drawing(
        "same-bytes",
        lambda dark: same_bytes(rows, dark=dark),
        rows,
        describe(rows),
        made_by(context.head),
    )


SAME_BYTES = Chart(
    "same-bytes",
    "explore",
    "Neurons or whole experts of the same bytes",
    _draw,
    ATOMIC_GRANULARITY,
)


def same_bytes(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `SAME_BYTES_COLUMNS`: a panel for each text.

    A row a candidate, the least loss on top by the mean over texts; neurons are circles, whole
    experts squares; the line at 0 is the full model.
    """
    texts = table["corpus"].unique().tolist()
    order = table.groupby("candidate", sort=False)["change"].mean().sort_values().index.tolist()
    fig = make_subplots(
        1,
        len(texts),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[plain(str(text)) for text in texts],
    )
    for column, text in enumerate(texts, 1):
        for granularity, (color, symbol) in _LOOKS.items():
            part = table[(table["corpus"] == text) & (table["granularity"] == granularity)]
            points = _points(part, granularity, series_color(color, dark), symbol)
            points.showlegend = column == 1
            fig.add_trace(points, row=1, col=column)
        fig.add_vline(x=0, line={"color": muted(dark), "width": 1.5}, row=1, col=column)
    apply_theme(fig, dark)
    fig.update_layout(height=140 + 26 * len(order), legend={"y": 1.1}, margin={"t": 70})
    fig.update_xaxes(title_text="loss change, nats", rangemode="tozero")
    fig.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=[plain(name) for name in order],
        range=[len(order) - 0.5, -0.5],
    )
    return fig


def _points(part: pd.DataFrame, granularity: str, color: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=part["change"],
        y=[plain(name) for name in part["candidate"]],
        name=WORDS[granularity],
        legendgroup=granularity,
        mode="markers",
        cliponaxis=False,
        marker={"symbol": symbol, "size": 11, "color": color},
        customdata=part[["loss", "full", "bytes"]],
        hovertemplate="%{y}<br>loss %{customdata[0]:.4f}, full model %{customdata[1]:.4f}: "
        "%{x:+.4f}<br>%{customdata[2]:,} bytes<extra></extra>",
    )


def describe(table: pd.DataFrame) -> str:
    """Who loses least where, in one sentence; then each text; then HEAPr against the baselines.

    Args:
        table: of `SAME_BYTES_COLUMNS`, all of about the same size.
    """
    texts = {str(text): rows for text, rows in table.groupby("corpus", sort=False)}
    won: dict[str, list[str]] = {}
    for text, rows in texts.items():
        won.setdefault(_best(rows)["candidate"], []).append(text)
    sentences = [
        f"With {table['removed'].iloc[0]:.1%} of the expert weights gone, at the same bytes, "
        + "; ".join(f"{name} loses least on {_joined(where)}" for name, where in won.items())
        + "."
    ]
    sentences += [_of_text(text, rows) for text, rows in texts.items()]
    if claim := _claim(texts):
        sentences.append(claim)
    return " ".join(sentences)


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _best(rows: pd.DataFrame) -> "pd.Series[Any]":
    return rows.sort_values("change", kind="stable").iloc[0]


def _claim(texts: Mapping[str, pd.DataFrame]) -> str:
    """What HEAPr's paper says, as measured: neurons of all layers against whole experts."""
    held, beaten = 0, 0
    for rows in texts.values():
        own = rows.loc[rows["candidate"] == CLAIMED, "change"]
        others = rows.loc[rows["granularity"] == "expert", "change"]
        if len(own) and len(others):
            held += 1
            beaten += bool(own.iloc[0] < others.min())
    if not held:
        return ""
    texts_word = "text" if held == 1 else "texts"
    return (
        f"{CLAIMED} (HEAPr-G) loses less than every plan of whole experts here on {beaten} of "
        f"{held} {texts_word}."
    )


def _of_text(text: str, rows: pd.DataFrame) -> str:
    ordered = rows.sort_values("change", kind="stable")
    best = ordered.iloc[0]
    sentence = f"{text}: {best['candidate']} {best['change']:+.3f} nats"
    if len(ordered) > 1:
        second = ordered.iloc[1]
        sentence += f", next {second['candidate']} {second['change']:+.3f}"
        if best["esap_low"] <= second["esap_high"] and second["esap_low"] <= best["esap_high"]:
            sentence += " (too near to tell apart)"
    others = ordered[ordered["granularity"] != best["granularity"]]
    if not others.empty:
        other = others.iloc[0]
        kind = WORDS[str(other["granularity"])]
        sentence += f", best of {kind} {other['candidate']} {other['change']:+.3f}"
    return sentence + "."
