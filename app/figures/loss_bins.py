"""A score against the true change of the loss, bin by bin (HEAPr, Figure 3)."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.stats import t as student_t

from app.figures.theme import apply_theme, muted, series_color

WORDS = {"expert": "experts", "atomic": "neurons"}


def loss_bins(
    table: pd.DataFrame, *, granularity: str, order: str, dark: bool = False
) -> go.Figure:
    """Figure of a table of `pruning.evaluate.bins.BIN_COLUMNS`.

    Bars are what the loss gains without a bin, with 95% intervals. Diamonds deal the sum of all
    gains out by the bins' shares of the saliency: what each would cost if the score were
    proportional to the loss. They are left out where shares mean nothing: a saliency below 0, or a
    sum of gains that is none.

    Args:
        table: one row a bin.
        granularity: `expert` or `atomic`.
        order: `saliency`, the least salient first, or `index`.
        dark: theme.
    """
    bins = [str(number + 1) for number in table["bin"]]
    changes, what = table["loss_change"], WORDS[granularity]
    fig = go.Figure(
        go.Bar(
            x=bins,
            y=changes,
            name="loss without the bin, minus the full model's",
            error_y={
                "type": "data",
                "array": table["high"] - changes,
                "arrayminus": changes - table["low"],
                "color": muted(dark),
                "thickness": 1.5,
            },
            customdata=table[["saliency", "removed"]],
            marker={"color": series_color(0, dark)},
            hovertemplate=f"bin %{{x}}: %{{customdata[1]:,}} {what}, mean saliency "
            "%{customdata[0]:.3g}<br>loss %{y:+.4f} nats per token<extra></extra>",
        )
    )
    if has_shares(table):
        fig.add_trace(_dealt_out(table, bins, series_color(1, dark)))
    apply_theme(fig, dark)
    fig.update_layout(height=380)
    place = "least salient first" if order == "saliency" else "first layers first"
    fig.update_xaxes(type="category", title_text=f"bin of {what}, {place}", showgrid=False)
    fig.update_yaxes(title_text="loss change, nats per token", zeroline=True)
    return fig


def _dealt_out(table: pd.DataFrame, bins: list[str], color: str) -> go.Scatter:
    return go.Scatter(
        x=bins,
        y=table["share"] * table["loss_change"].sum(),
        name="the same sum, dealt out by share of the saliency",
        mode="lines+markers",
        line={"color": color, "dash": "dash", "width": 2},
        marker={"symbol": "diamond", "size": 9, "color": color},
        customdata=table[["share"]],
        hovertemplate="bin %{x}: %{customdata[0]:.1%} of the saliency<extra></extra>",
    )


def has_shares(table: pd.DataFrame) -> bool:
    """Whether shares of the saliency can be set against shares of the loss."""
    is_positive = bool((table["saliency"] >= 0).all() and table["share"].notna().all())
    return is_positive and bool(table["loss_change"].sum() > 0)


def describe(table: pd.DataFrame, agreement: float, name: str, num_samples: int) -> str:
    """One sentence: how well the order of a score is that of the loss.

    Args:
        table: of `BIN_COLUMNS`.
        agreement: rank correlation of saliency and loss change.
        name: of the score.
        num_samples: on which the loss was measured.
    """
    first, last = table.iloc[0], table.iloc[-1]
    ends = (
        f"the first bin costs {first['loss_change']:+.4f} nats per token, the last "
        f"{last['loss_change']:+.4f}"
    )
    if math.isnan(agreement):
        return f"{name} says the same of every bin, so it has no order to judge; {ends}."
    return (
        f"{name} {_verdict(agreement)}: rank correlation with the true loss change "
        f"{agreement:.2f} over {len(table)} bins, on {num_samples} samples (19 of 20 random orders "
        f"stay below {chance_agreement(len(table)):.2f}); {ends}."
    )


def chance_agreement(bins: int) -> float:
    """The rank correlation that a random order exceeds one time in 20; 1 for fewer than 4 bins.

    By Student's t, as it is usual: t = r sqrt((n - 2) / (1 - r^2)).
    """
    if bins < 4:
        return 1.0
    quantile = float(student_t.ppf(0.95, bins - 2))
    return quantile / math.sqrt(bins - 2 + quantile**2)


def _verdict(agreement: float) -> str:
    words = ("orders them the wrong way round", "says little of the loss", "has the order roughly")
    limits = np.array([-0.3, 0.5, 0.9])
    place = int(np.searchsorted(limits, agreement, side="right"))
    return words[place] if place < len(words) else "has the order right"
