"""The lens of a text: what a plan costs at each token, and the experts that a token lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from analysis.foreign_text import in_html, in_terminal
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.evaluations import plan_name
from app.charts.theme import CLEAR, ink, mixed, muted, paper, primary, series_color, themed
from app.charts.traces import Place, annotation, layer_axis, pin_box, signed
from app.choices import result_words
from pruning.plan.plan import fit_plan
from pruning.records.lens import (
    TOOK_OVER,
    WANTED,
    LensPlan,
    LensRecord,
    LensStore,
    in_short,
    lens_losses,
    lens_table,
    text_loss_increase,
    token_table,
)

if TYPE_CHECKING:
    from app.loaded import Loaded

TEXT_CHARTS: Final = ("text-tokens", "text-experts", "text-plans", "token-experts")
_WORSE, _BETTER = 1, 0  # places in the series colours: orange, blue
# Of the width of a row: the wanted experts end at 1, then a sentence, then what took over.
_WORDS_AT, _OTHERS_AT, _OTHER_WIDTH = 1.03, 1.3, 0.085
_ROW: Final = 34
_BETWEEN: Final = 0.16  # rows, of a row
_PART: Final = "\u25a1"  # a part of a character
# What is not seen as it stands; a line break stays one.
_VISIBLE: Final = {"\n": "\u21b5\n", "\t": "\u21e5\t", "\r": "\u240d"}


def visible(token: str) -> str:
    """A token's text as people can see it: blanks alone, tabs and line breaks have signs."""
    if not token:
        return _PART
    text = "".join(_VISIBLE.get(character) or in_terminal(character) for character in token)
    return text if token.strip() else text.replace(" ", "\u2423")


def in_quotes(token: str) -> str:
    """A token's text on one line, for sentences and labels; not escaped."""
    return f"\u201c{visible(token).replace(chr(10), '').strip() or token.strip()}\u201d"


def lenses(loaded: Loaded) -> tuple[LensRecord, ...]:
    """Every lens of the model, by its name."""
    return loaded.study.records(LensStore)[0]


def shown_lens(loaded: Loaded) -> LensRecord:
    """The chosen text, else the one that the plan on screen loses most of, else the first."""
    records, name = lenses(loaded), loaded.choices.results.text
    if not records:
        raise StatsError(
            f"{loaded.model.name} has no text that was scored token by token; `moeprune ask "
            "--text` does it."
        )
    if name:
        matches = [record for record in records if record.record_id == name]
        if not matches:
            ids = ", ".join(record.record_id for record in records)
            raise StatsError(f"There is no lens {name!r}; known: {ids}.")
        return matches[0]
    return most_lost(records, shown_digest(loaded))


def most_lost(records: Sequence[LensRecord], digest: str) -> LensRecord:
    """The text that a plan loses most of; the first if it was run on none."""
    losses = {
        record.record_id: text_loss_increase(record, plan)
        for record in records
        if (plan := record.of_plan(digest))
    }
    return max(records, key=lambda record: losses.get(record.record_id, -np.inf))


def shown_digest(loaded: Loaded) -> str:
    """The digest of the plan on screen, or of the one that was asked for."""
    plan = loaded.shown.plan if loaded.shown else None
    if plan is None:
        plan = loaded.study.plan_of(loaded.first)
    return fit_plan(plan, loaded.model).digest


def shown_plan(loaded: Loaded, record: LensRecord) -> LensPlan:
    """The plan on screen, as it was run on a text."""
    plan = record.of_plan(shown_digest(loaded))
    if plan is None:
        names = "; ".join(plan_name(plan) for plan in record.plans)
        raise StatsError(
            f"This plan has not been run on the text {record.record_id}; run there: {names}. "
            "`moeprune ask --text` with --plan adds it."
        )
    return plan


def shown_token(loaded: Loaded, table: pd.DataFrame) -> int:
    """The chosen token, else the one that costs most."""
    token = loaded.choices.results.token
    return int(table["change"].argmax()) + 1 if token is None else token


def token_colors(table: pd.DataFrame, dark: bool) -> list[str]:
    """The colour of each token: of the page without a change, orange for the largest increase.

    Tokens that the plan predicts better are blue. `table` has TOKEN_COLUMNS.
    """
    changes = np.nan_to_num(table["change"].to_numpy(dtype=np.float64))
    most = float(np.abs(changes).max()) or 1.0
    ends = {place: series_color(place, dark) for place in (_WORSE, _BETTER)}
    return [
        mixed(paper(dark), ends[_WORSE if change > 0 else _BETTER], abs(change) / most)
        for change in changes
    ]


def _chosen(loaded: Loaded) -> tuple[LensRecord, LensPlan, pd.DataFrame]:
    record = shown_lens(loaded)
    plan = shown_plan(loaded, record)
    return record, plan, token_table(record, plan)


def _about(loaded: Loaded, record: LensRecord, *plans: LensPlan) -> str:
    return made_by(model_fact(loaded), record.record_id, *map(plan_name, plans))


@chart("text-tokens", "evaluate")
def draw_tokens(loaded: Loaded) -> Drawing:
    """Where the plan loses a text, token by token."""
    record, plan, table = _chosen(loaded)
    words = f"{plan_name(plan)} on \u201c{record.asked.title}\u201d: {in_short(record, plan)}."
    options = result_words(lens_id=record.record_id)
    about = _about(loaded, record, plan)
    return Drawing(partial(token_bars, table), table, words, about, options=options)


def token_bars(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of TOKEN_COLUMNS: a bar per token, upwards where the plan loses."""
    words = [in_html(in_quotes(str(text))) for text in table["text"]]
    bars = go.Bar(
        x=table["token"],
        y=signed(table["change"], 3),
        customdata=np.column_stack([words, table["full_loss"], table["loss"], table["gone"]]),
        marker={
            "color": [
                series_color(_WORSE if change > 0 else _BETTER, dark) for change in table["change"]
            ]
        },
        hovertemplate="%{customdata[0]}: %{y:+.3f} nats<br>loss %{customdata[2]:.3f}, original "
        "%{customdata[1]:.3f}<br>%{customdata[3]:.0%} of the gate weight gone<extra></extra>",
    )
    tops = table.nlargest(6, "change").sort_values("token", kind="stable")
    tops = tops[tops["token"].diff().fillna(len(table)) > len(table) / 20]  # else words overlap
    notes = [
        annotation(row["token"], row["change"], words[int(row["token"]) - 1], yanchor="bottom")
        for row in tops.to_dict("records")
    ]
    return themed(
        [bars],
        dark,
        x={"title": "token", "showgrid": False},
        y={"title": "loss increase, nats", "zeroline": True},
        height=300,
        annotations=notes,
        margin={"t": 28},
    )


@chart("text-experts", "evaluate")
def draw_experts(loaded: Loaded) -> Drawing:
    """Which experts predict a token, which are gone, and what took over."""
    record, plan, tokens = _chosen(loaded)
    token = shown_token(loaded, tokens)
    table = lens_table(record, plan, token)
    layers = [layer.layer for layer in record.layers]
    return Drawing(
        partial(token_experts, table, layers, marked=loaded.choices.expert),
        table,
        describe(table, tokens, token),
        _about(loaded, record, plan) + f" | token {token}",
        options=result_words(lens_id=record.record_id, token=str(token)),
    )


def token_experts(
    table: pd.DataFrame, layers: list[int], *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of LENS_COLUMNS of one token: a row per layer.

    The wider, the more gate weight; hatched experts are pruned. To the right the share of the gate
    weight that is gone, and the experts that took over. `marked` is a (layer, expert).
    """
    rows = {layer: place for place, layer in enumerate(layers)}
    choices = table[table["role"] == WANTED].copy()
    choices["start"] = choices.groupby("layer")["share"].cumsum() - choices["share"]
    others = table[table["role"] == TOOK_OVER].copy()
    others["start"] = _OTHERS_AT + others.groupby("layer").cumcount() * _OTHER_WIDTH
    others["share"] = _OTHER_WIDTH
    removed = (
        choices[choices["removed"]].groupby("layer")["share"].sum().reindex(layers).fillna(0.0)
    )
    notes = [
        annotation(_WORDS_AT, rows[layer], f"{removed[layer]:.0%} gone", xanchor="left")
        for layer in layers
    ]
    notes += [
        annotation(
            _OTHERS_AT, rows[layer], "as before", xanchor="left", font={"color": muted(dark)}
        )
        for layer in set(layers) - set(others["layer"])
    ]
    right = max(1.55, float((others["start"] + others["share"]).max() if len(others) else 0) + 0.02)
    pins = [
        shape
        for part in (choices, others)
        for row in part.to_dict("records")
        if (row["layer"], row["expert"]) == marked
        for shape in _pin(row["start"], row["share"], rows[row["layer"]], dark)
    ]
    traces = [
        _boxes(choices[~choices["removed"]], rows, dark, "kept"),
        _boxes(choices[choices["removed"]], rows, dark, "pruned"),
        _boxes(others, rows, dark, "took over"),
    ]
    return themed(
        traces,
        dark,
        x={"range": [0, right], "visible": False, "fixedrange": True},
        y=layer_axis(layers, 1, title="layer"),
        height=_ROW * len(layers) + 70,
        barmode="overlay",
        bargap=_BETWEEN,
        annotations=notes,
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"t": 34},
        shapes=pins,
    )


def _pin(start: float, width: float, row: int, dark: bool) -> list[dict[str, Any]]:
    half = (1 - _BETWEEN) / 2
    return pin_box((start, start + width), (row - half, row + half), dark)


def hatch(dark: bool) -> tuple[str, str]:
    """Colours of a pruned expert: the ground, and its hatching; text on both has 4.5:1."""
    mark = series_color(_WORSE, dark)
    return mixed(paper(dark), mark, 0.08), mixed(paper(dark), mark, 0.38)


def _boxes(part: pd.DataFrame, rows: dict[int, int], dark: bool, name: str) -> go.Bar:
    """One kind of experts as boxes with their numbers."""
    mark: dict[str, Any] = {
        "color": mixed(paper(dark), primary(dark), 0.14 if name == "kept" else 0.0),
        "line": {"color": primary(dark), "width": 1},
    }
    if name == "pruned":
        ground, lines = hatch(dark)
        mark["color"] = ground
        mark["line"] = {"color": series_color(_WORSE, dark), "width": 1.5}
        mark["pattern"] = {
            **{"shape": "/", "size": 8, "solidity": 0.4, "fillmode": "overlay"},
            **{"bgcolor": ground, "fgcolor": lines},
        }
    gates = part["gate"].map(lambda gate: "" if np.isnan(gate) else f", gate weight {gate:.3f}")
    return go.Bar(
        x=part["share"],
        y=part["layer"].map(rows),
        base=part["start"],
        orientation="h",
        name=name,
        text=part["expert"].astype(str),
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": ink(dark)},
        marker=mark,
        customdata=np.column_stack([part["layer"], part["expert"], gates]),
        hovertemplate=f"layer %{{customdata[0]}}, expert %{{customdata[1]}}: {name}"
        "%{customdata[2]}<extra></extra>",
        showlegend=True,
    )


def describe(table: pd.DataFrame, tokens: pd.DataFrame, token: int) -> str:
    """One sentence on the experts that predict a token: where most is gone.

    `tokens` has TOKEN_COLUMNS.
    """
    rows = tokens.set_index("token")
    change = rows["change"][token]
    cost = "" if np.isnan(change) else f" ({change:+z.2f} nats)"
    text, before = (in_quotes(str(rows["text"][position])) for position in (token, token - 1))
    choices = table[table["role"] == WANTED]
    removed = choices["share"].where(choices["removed"], 0.0).groupby(choices["layer"]).sum()
    head = f"{text}{cost} is predicted at {before}, where "
    if not removed.any():
        return f"{head}the plan keeps every expert that was wanted."
    took = table[table["role"] == TOOK_OVER].groupby("layer").size()
    return (
        f"{head}{removed.mean():.0%} of the gate weight is gone, most in layer {removed.idxmax()} "
        f"({removed.max():.0%}); other experts took over in {len(took)} of {len(removed)} layers."
    )


@chart("text-plans", "evaluate")
def draw_plans(loaded: Loaded) -> Drawing:
    """What every plan costs on a text."""
    record = shown_lens(loaded)
    digest = shown_digest(loaded)
    table = pd.DataFrame(
        [
            (plan_name(plan), plan.plan_digest, change, plan.plan_digest == digest)
            for plan, change in lens_losses(record)
        ],
        columns=["name", "plan", "change", "is_shown"],
    )
    if table.empty:
        raise StatsError(f"No plan has been run on the text {record.record_id}.")
    best, last = table.iloc[0], table.iloc[-1]
    words = f"Least is lost by {best['name']} ({best['change']:+z.2f} nats a token)"
    words += f", most by {last['name']} ({last['change']:+z.2f})." if len(table) > 1 else "."
    return Drawing(
        partial(plan_bars, table),
        table,
        words,
        _about(loaded, record),
        options=result_words(lens_id=record.record_id),
    )


def plan_bars(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `name, change, is_shown`: a bar per plan, the one on screen coloured."""
    names = [in_html(name) for name in table["name"]]
    bars = go.Bar(
        x=signed(table["change"], 3),
        y=list(range(len(table))),
        orientation="h",
        text=[f"{change:+z.2f}" for change in table["change"]],
        textposition="outside",
        cliponaxis=False,
        marker={
            "color": [primary(dark) if is_shown else muted(dark) for is_shown in table["is_shown"]]
        },
        customdata=names,
        hovertemplate="%{customdata}: %{x:+.3f} nats a token<extra></extra>",
    )
    notes = [
        annotation(0, place - 0.42, name, xanchor="left", yanchor="middle")
        for place, name in enumerate(names)
    ]
    low, high = min(0.0, float(table["change"].min())), max(0.0, float(table["change"].max()))
    return themed(
        [bars],
        dark,
        x={"visible": False, "range": [low, (high or 0.1) * 1.2], "fixedrange": True},
        y={"visible": False, "range": [len(table) - 0.5, -0.75], "fixedrange": True},
        height=46 * len(table) + 20,
        bargap=0.62,
        annotations=notes,
        paper_bgcolor=CLEAR,
    )
