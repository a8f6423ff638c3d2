"""Candidates of the same size: loss per corpus, neurons and whole experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.cache_keys import most_results
from analysis.criteria import criterion_label
from analysis.errors import StatsError
from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.criterion_looks import looks
from app.charts.evaluations import pool_draws
from app.charts.theme import OVER_TITLES, Look, apply_theme, ink, muted
from app.charts.traces import series, signed
from pruning.measures.store import readable_records
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.variant_words import variant_words
from pruning.planning.choice import schedule_words
from pruning.records.evaluation import EvaluationRecord, EvaluationStore, evaluation_table
from pruning.records.plan_facts import VARIANT_COLUMNS
from pruning.records.quality import record_ways

if TYPE_CHECKING:
    from app.loaded import Loaded

WORDS: Final = {"neuron": "neurons", "expert": "whole experts"}
_SYMBOLS: Final = {"neuron": "circle", "expert": "square"}
CLAIMED: Final = "HEAPr, neurons global"
SAME_BYTES_COLUMNS: Final = (
    *("corpus", "granularity", "candidate", "repaired_on", "removed", "bytes"),
    *("loss", "full", "change"),
    *("esap", "esap_low", "esap_high"),
)
# Tolerance for equal sizes: whole experts include their router rows.
_SAME: Final = 0.01


def same_bytes_table(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """Table of SAME_BYTES_COLUMNS: plans of neurons and of whole experts of the same size.

    Only plans measured as most were (`record_ways`) and ranked on the evaluation corpus, or on
    none; per corpus the sizes that both kinds reach within 1% of the bytes. A corpus that ranked no
    plan is left out if another did. Sorted by corpus and change of the loss; `removed` is the
    sparsity of the plans of neurons.
    """
    pairs = zip(records, record_ways(records), strict=True)
    table = evaluation_table([record for record, way in pairs if not way])
    kind = table["granularity"] + table["schedule"] + table["repaired_on"]
    kind += table["repair_tokens"].astype(str)
    table = pool_draws(table.assign(series=kind, way=""))
    wide = table.pivot_table(index="evaluation", columns="measure", values="mean")
    rows = table[(table["measure"] == "nll") & (table["removed"] > 0)]
    rows = rows[(rows["bits"] == "") & (rows["top_k"] == "")]
    rows = rows[(rows["calibrated_on"] == rows["corpus"]) | (rows["calibrated_on"] == "")]
    ranked = rows.loc[rows["calibrated_on"] != "", "corpus"]
    rows = rows[rows["corpus"].isin(ranked)] if len(ranked) else rows
    esap = table[table["measure"] == "esap"].set_index("evaluation")[["low", "high"]]
    rows = rows.assign(
        candidate=[
            f"{criterion_label(row['criterion'])}, "
            f"{WORDS[row['granularity']].removeprefix('whole ')} "
            f"{(schedule_words(row['schedule']) or 'uniform').removeprefix('neurons ')}"
            f"{variant_words(*(row[name] for name in VARIANT_COLUMNS))}"
            for row in rows.to_dict("records")
        ],
        loss=rows["mean"],
        change=rows["mean"] - rows["full"],
        esap=rows["evaluation"].map(wide["esap"]) if "esap" in wide else np.nan,
        esap_low=rows["evaluation"].map(esap["low"]),
        esap_high=rows["evaluation"].map(esap["high"]),
    )
    same = ["corpus", "candidate", "bytes"]
    rows = rows.sort_values("created_at", kind="stable").drop_duplicates(same, keep="last")
    parts = []
    for _, block in rows.groupby("corpus"):
        neurons = block[block["granularity"] == NEURON_GRANULARITY]
        for removed, nbytes in neurons.groupby("removed")["bytes"].max().items():
            near = block[(block["bytes"] - nbytes).abs() <= _SAME * nbytes]
            if len(set(near["granularity"])) > 1:
                parts.append(near.assign(removed=round(float(str(removed)), 4)))
    if not parts:
        return pd.DataFrame(columns=list(SAME_BYTES_COLUMNS))
    sizes: pd.DataFrame = pd.concat(parts)[list(SAME_BYTES_COLUMNS)]
    return sizes.sort_values(["removed", "corpus", "change"], kind="stable", ignore_index=True)


def same_bytes_of(loaded: Loaded) -> pd.DataFrame:
    """`same_bytes_table` of the readable evaluations of the model."""
    return loaded.study.cached(_stored_table, loaded.study.evaluations, loaded.model.identity)


@most_results(4)
def _stored_table(store: EvaluationStore, identity: str) -> pd.DataFrame:
    return same_bytes_table(readable_records(store, identity)[0])


def usual_size(table: pd.DataFrame) -> float:
    """The sparsity at which HEAPr's claim was tested on most corpora, else the least."""
    tested = table[table["candidate"] == CLAIMED].groupby("removed")["corpus"].nunique()
    best = tested.sort_values(ascending=False, kind="stable")
    return float([*best.index, table["removed"].iloc[0]][0])


@chart("same-bytes", "explore", granularity=NEURON_GRANULARITY)
def draw(loaded: Loaded) -> Drawing:
    """Neurons or whole experts of the same bytes."""
    table = same_bytes_of(loaded)
    if table.empty:
        raise StatsError(
            f"{loaded.model.name} has no evaluations of neurons and of whole experts of the same "
            "size; see `moeprune evaluate`."
        )
    removed = usual_size(table) if loaded.choices.removed is None else loaded.choices.removed
    rows = table[table["removed"] == removed].reset_index(drop=True)
    return Drawing(partial(same_bytes, rows), rows, describe(rows), made_by(model_fact(loaded)))


def same_bytes(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `SAME_BYTES_COLUMNS`: a panel per corpus, a row per candidate.

    The least mean loss is on top; neurons are circles, whole experts squares.
    """
    corpora = table["corpus"].unique().tolist()
    means = table.groupby("candidate", sort=False)["change"].mean()
    order = means.sort_values(kind="stable").index.tolist()
    fig = make_subplots(
        1,
        len(corpora),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[in_html(str(corpus)) for corpus in corpora],
    )
    colors = {name: look.color for name, look in looks(order, dark).items()}
    for granularity, symbol in _SYMBOLS.items():
        mark = {"symbol": symbol, "size": 11, "color": ink(dark)}
        entry = go.Scatter(x=[None], y=[None], mode="markers", marker=mark, name=WORDS[granularity])
        fig.add_trace(entry, row=1, col=1)
    for column, corpus in enumerate(corpora, 1):
        for granularity, symbol in _SYMBOLS.items():
            part = table[(table["corpus"] == corpus) & (table["granularity"] == granularity)]
            points = series(
                Look(ink(dark), symbol, "solid"),
                WORDS[granularity],
                (signed(part["change"], 4), [in_html(name) for name in part["candidate"]]),
                "%{y}<br>loss %{customdata[0]:.4f}, original model %{customdata[1]:.4f}: "
                "%{x:+.4f}<br>%{customdata[2]:,} bytes",
                mode="markers",
                marker={"size": 11, "color": part["candidate"].map(colors).tolist()},
                showlegend=False,
                cliponaxis=False,
                customdata=part[["loss", "full", "bytes"]],
            )
            fig.add_trace(points, row=1, col=column)
        fig.add_vline(x=0, line={"color": muted(dark), "width": 1.5}, row=1, col=column)
    return apply_theme(
        fig,
        dark,
        x={"title": "loss increase, nats per token", "rangemode": "tozero"},
        y={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [in_html(name) for name in order],
            "range": [len(order) - 0.5, -0.5],
        },
        height=140 + 26 * len(order),
        legend=OVER_TITLES,
        margin={"t": 24},
    )


def describe(table: pd.DataFrame) -> str:
    """Who loses least where; then each corpus; then the claim of the HEAPr paper."""
    corpora = {
        str(corpus): rows.sort_values("change", kind="stable")
        for corpus, rows in table.groupby("corpus", sort=False)
    }
    won: dict[str, list[str]] = {}
    for corpus, rows in corpora.items():
        won.setdefault(rows["candidate"].iloc[0], []).append(corpus)
    winners = [
        f"{name} loses least on " + " and ".join(filter(None, (", ".join(where[:-1]), where[-1])))
        for name, where in won.items()
    ]
    first = f"With {table['removed'].iloc[0]:.1%} of the expert weights gone, at the same bytes, "
    sentences = [f"{first}{'; '.join(winners)}.", *map(_of_corpus, corpora, corpora.values())]
    return " ".join(filter(None, (*sentences, _claim(corpora))))


def _claim(corpora: Mapping[str, pd.DataFrame]) -> str:
    """On how many corpora global neurons lose less than every plan of whole experts.

    Without a repair, of which the paper says nothing.
    """
    num_corpora, beaten = 0, 0
    for rows in corpora.values():
        changes = rows.loc[rows["candidate"] == CLAIMED, "change"]
        is_rival = (rows["granularity"] == "expert") & (rows["repaired_on"] == "")
        others = rows.loc[is_rival, "change"]
        if len(changes) and len(others):
            num_corpora += 1
            beaten += bool(changes.iloc[0] < others.min())
    if not num_corpora:
        return ""
    is_any_repaired = any((rows["repaired_on"] != "").any() for rows in corpora.values())
    unrepaired = " unrepaired" if is_any_repaired else ""
    return (
        f"{CLAIMED} (HEAPr-G) loses less than every{unrepaired} plan of whole experts here on "
        f"{beaten} of {num_corpora} {'corpus' if num_corpora == 1 else 'corpora'}."
    )


def _of_corpus(corpus: str, rows: pd.DataFrame) -> str:
    best = rows.iloc[0]
    sentence = f"{corpus}: {best['candidate']} {best['change']:+z.3f} nats"
    if len(rows) > 1:
        second = rows.iloc[1]
        sentence += f", next {second['candidate']} {second['change']:+z.3f}"
        if best["esap_low"] <= second["esap_high"] and second["esap_low"] <= best["esap_high"]:
            sentence += " (too close to call)"
    others = rows[rows["granularity"] != best["granularity"]]
    if not others.empty:
        other = others.iloc[0]
        kind = WORDS[str(other["granularity"])]
        sentence += f", best of {kind} {other['candidate']} {other['change']:+z.3f}"
    return sentence + "."
