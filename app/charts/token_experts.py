"""The experts that read a token: those to which the original sends it, in the scored texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.errors import StatsError
from analysis.model.moe_model import MoEModel
from analysis.numbers.words import counted
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.text_lens import hatch, lenses, visible
from app.charts.theme import ink, primary, series_color, themed
from app.charts.traces import STILL_LEGEND, Place, pin_box
from app.choices import TokenChoice
from pruning.records.lens import LensRecord, token_readers

if TYPE_CHECKING:
    from app.loaded import Loaded

_MOST_BARS: Final = 12
_MOST_NAMED: Final = 8  # tokens, where the searched one is in no text
_ROW: Final = 22
_HALF: Final = 0.4  # of a bar's height, in rows


def searched_form(token: str) -> str:
    """A token as it is searched for: without blanks around it, blanks alone with their signs."""
    return visible(token).replace("\n", "").strip()


def frequent_tokens(records: Sequence[LensRecord]) -> list[str]:
    """The tokens of these texts as they are searched for, the most frequent first."""
    count = Counter(searched_form(token) for record in records for token in record.tokens)
    return [token for token, _ in count.most_common()]


def searched_texts(loaded: Loaded) -> list[LensRecord]:
    """The scored texts that are searched."""
    wanted = loaded.choices.token.lenses
    records = lenses(loaded)
    known = [record for record in records if wanted is None or record.record_id in wanted]
    if not known:
        raise StatsError(
            f"{loaded.model.name} has no text that was scored token by token, and no other record "
            "says which tokens an expert reads; `moeprune ask --text` scores one."
        )
    return known


def usual_token(records: Sequence[LensRecord]) -> str:
    """The most frequent word, or token if there is none."""
    tokens = frequent_tokens(records)
    return next((token for token in tokens if token.isalpha()), tokens[0])


@chart("token-experts", "explore")
def draw(loaded: Loaded) -> Drawing:
    """Which experts read a token."""
    records = searched_texts(loaded)
    typed = loaded.choices.token.text
    token = searched_form(typed) if typed else usual_token(records)
    table = token_readers(records, lambda text: searched_form(text) == token)
    if table.empty:
        others = ", ".join(frequent_tokens(records)[:_MOST_NAMED])
        raise StatsError(
            f"No scored text has the token {token!r}, so nobody knows here which experts read it; "
            f"frequent ones are {others}."
        )
    kept = loaded.shown_plan.kept
    pairs = zip(table["layer"], table["expert"], strict=True)
    table = table.assign(removed=[expert not in kept[layer] for layer, expert in pairs])
    figure = partial(reader_bars, table, marked=loaded.choices.expert)
    return Drawing(
        figure,
        table,
        describe(table, token, records),
        made_by(model_fact(loaded), *(record.record_id for record in records)),
        options=TokenChoice(token).options(),
    )


def shares_by_expert(table: pd.DataFrame, model: MoEModel) -> NDArray[np.float64]:
    """(layers, experts) the shares of a table of `draw`, 0 for experts that do not read it."""
    rows = {layer.index: row for row, layer in enumerate(model.layers)}
    shares = np.zeros((len(rows), max(layer.num_experts for layer in model.layers)))
    shares[table["layer"].map(rows), table["expert"]] = table["share"]
    return shares


def reader_bars(
    table: pd.DataFrame, *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `draw`: a bar per expert, those with the largest shares.

    `marked` is a (layer, expert), which has a bar whatever its share.
    """
    is_marked = [place == marked for place in zip(table["layer"], table["expert"], strict=True)]
    ordered = table.assign(is_marked=is_marked).sort_values(
        "share", ascending=False, kind="stable", ignore_index=True
    )
    others = ordered.index[_MOST_BARS:][ordered["is_marked"][_MOST_BARS:]]
    rows = ordered.loc[[*ordered.index[:_MOST_BARS], *others]].reset_index(drop=True)
    names = [f"{row.layer}.{row.expert}" for row in rows.itertuples()]
    pins = [
        shape
        for row, (share, is_marked) in enumerate(zip(rows["share"], rows["is_marked"], strict=True))
        if is_marked
        for shape in pin_box((0, share), (row - _HALF, row + _HALF), dark)
    ]
    bars = [_bars(rows, dark, removed=removed) for removed in (False, True)]
    return themed(
        bars,
        dark,
        x={"title": "share of the token's gate weight in the layer", "tickformat": ".0%"},
        y={
            "title": "layer.expert",
            "range": [len(rows) - 0.5, -0.5],
            "tickvals": list(range(len(rows))),
            "ticktext": names,
            "showgrid": False,
        },
        height=_ROW * len(rows) + 110,
        barmode="overlay",
        shapes=pins,
        legend=STILL_LEGEND,
    )


def _bars(rows: pd.DataFrame, dark: bool, *, removed: bool) -> go.Bar:
    part = rows[rows["removed"] == removed]
    mark: dict[str, Any] = {"color": primary(dark)}
    if removed:
        ground, lines = hatch(dark)
        mark = {
            "color": ground,
            "line": {"color": series_color(1, dark), "width": 1.5},
            "pattern": {"shape": "/", "size": 8, "bgcolor": ground, "fgcolor": lines},
        }
    return go.Bar(
        x=part["share"],
        y=part.index,
        width=2 * _HALF,
        orientation="h",
        name="pruned" if removed else "kept",
        marker=mark,
        text=[f"{share:.0%}" for share in part["share"]],
        textposition="outside",
        textfont={"color": ink(dark)},
        cliponaxis=False,
        customdata=part[["layer", "expert", "num_tokens"]].to_numpy(),
        hovertemplate="layer %{customdata[0]}, expert %{customdata[1]}: %{x:.1%}, of "
        "%{customdata[2]} of these tokens<extra></extra>",
        showlegend=True,
    )


def describe(table: pd.DataFrame, token: str, records: Sequence[LensRecord]) -> str:
    """One sentence: where the token stands, who reads most of it, how much the plan removes."""
    times = sum(searched_form(text) == token for record in records for text in record.tokens)
    top = table.nlargest(1, "share").iloc[0]
    gone = float(table.loc[table["removed"], "share"].sum()) / table["layer"].nunique()
    return (
        f"\u201c{token}\u201d stands {counted(times, 'time')} in "
        f"{counted(len(records), 'scored text')}; expert {top['layer']:.0f}.{top['expert']:.0f} "
        f"has {top['share']:.0%} of its gate weight in layer {top['layer']:.0f}, and experts that "
        f"the plan prunes have {gone:.0%} over all layers."
    )
