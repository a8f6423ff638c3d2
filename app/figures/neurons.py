"""Figures of neurons: scores against true changes of the loss, shares by layer, FLOPs saved."""

import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import DASHES, SYMBOLS, apply_theme, muted, plain, series_color


def bin_bars(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `pruning.neuron_views.BIN_COLUMNS`: shares of scores and loss changes.

    A pair of bars for each bin, as HEAPr's Figure 3.
    """
    bins = [str(number + 1) for number in table["bin"]]
    bars = (
        ("score", "score_share", "score", ".3g"),
        ("loss change without it", "change_share", "change", "+.4f"),
    )
    fig = go.Figure()
    for place, (name, share, number, form) in enumerate(bars):
        fig.add_trace(
            go.Bar(
                x=bins,
                y=table[share],
                name=name,
                customdata=table[[number, "neurons"]],
                marker={"color": series_color(place, dark), "pattern": {"shape": ("", "/")[place]}},
                hovertemplate=f"bin %{{x}}: {name} %{{customdata[0]:{form}}}, %{{y:.1%}} of "
                "the sum, %{customdata[1]:,} neurons<extra></extra>",
            )
        )
    apply_theme(fig, dark)
    fig.update_layout(barmode="group", height=360)
    fig.update_xaxes(type="category", title_text="bin of neurons", showgrid=False)
    fig.update_yaxes(title_text="share of the sum", tickformat=".0%")
    return fig


def describe_bins(table: pd.DataFrame) -> str:
    """One sentence: how the two shares agree."""
    last, order = table.iloc[-1], table["score"].corr(table["change"], method="spearman")
    return (
        f"The last bin holds {last['score_share']:.0%} of the scores and "
        f"{last['change_share']:.0%} of the loss changes; rank correlation over {len(table)} bins "
        f"{order:.2f}."
    )


def layer_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `series, layer, share`: fraction of each layer's neurons that goes.

    As HEAPr's Figures 5 and 6.
    """
    fig = go.Figure()
    for place, (name, line) in enumerate(table.groupby("series", sort=False)):
        color = series_color(place, dark)
        fig.add_trace(
            go.Scatter(
                x=line["layer"],
                y=line["share"],
                name=plain(str(name)),
                mode="lines+markers",
                line={"color": color, "dash": DASHES[place % len(DASHES)], "width": 2},
                marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "color": color, "size": 9},
                hovertemplate=f"{plain(str(name))}, layer %{{x}}: %{{y:.1%}}<extra></extra>",
            )
        )
    apply_theme(fig, dark)
    fig.update_layout(height=360)
    fig.update_xaxes(
        title_text="layer", showgrid=False, dtick=max(1, table["layer"].nunique() // 8)
    )
    fig.update_yaxes(title_text="neurons removed", tickformat=".0%", rangemode="tozero")
    return fig


def describe_layers(table: pd.DataFrame) -> str:
    """One sentence: where each series removes most and least."""
    words = []
    for name, line in table.groupby("series", sort=False):
        falling = line.sort_values("share", ascending=False, kind="stable")
        most, least = falling.iloc[0], falling.iloc[-1]
        words.append(
            f"{name} removes most in layer {most['layer']} ({most['share']:.0%}), least in layer "
            f"{least['layer']} ({least['share']:.0%})"
        )
    return "; ".join(words) + "."


def flops_line(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `removed, reduction`: FLOPs of experts saved against neurons removed.

    Above the diagonal the neurons of experts that are often chosen go.
    """
    fig = go.Figure()
    top = max(float(table["removed"].max()), 0.01)
    fig.add_trace(
        go.Scatter(
            x=[0, top],
            y=[0, top],
            name="all experts alike",
            mode="lines",
            line={"color": muted(dark), "dash": "dot", "width": 2},
            hoverinfo="skip",
        )
    )
    fig.add_trace(
        go.Scatter(
            x=table["removed"],
            y=table["reduction"],
            name="by the measured routing",
            mode="lines+markers",
            line={"color": series_color(0, dark), "width": 2},
            marker={"color": series_color(0, dark), "size": 9},
            hovertemplate="%{x:.1%} of neurons: %{y:.1%} of FLOPs<extra></extra>",
        )
    )
    apply_theme(fig, dark)
    fig.update_layout(height=360)
    fig.update_xaxes(title_text="neurons removed", tickformat=".0%")
    fig.update_yaxes(title_text="FLOPs of experts saved per token", tickformat=".0%")
    return fig


def describe_flops(table: pd.DataFrame) -> str:
    """One sentence: what the largest removal saves."""
    last = table.sort_values("removed").iloc[-1]
    return (
        f"With {last['removed']:.0%} of the neurons gone, a token needs {last['reduction']:.0%} "
        "fewer FLOPs of experts by the measured routing."
    )
