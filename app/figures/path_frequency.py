"""How many samples' paths pass through each expert: layer x expert (MoE Pathfinder, Figure 2)."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import apply_theme, colorbar, colorscale


def path_frequency(table: pd.DataFrame, num_samples: int, *, dark: bool = False) -> go.Figure:
    """Figure of a table `layer, expert, num_samples, rank`; layer 0 on top.

    Args:
        table: one row an expert; rank 0 is the first to keep over all layers.
        num_samples: samples in all, the end of the colour scale.
        dark: theme.
    """
    layers = sorted(table["layer"].unique())
    place = (np.searchsorted(layers, table["layer"].to_numpy()), table["expert"].to_numpy())
    counts = np.full((len(layers), int(table["expert"].max()) + 1), np.nan, dtype=np.float32)
    counts[place] = table["num_samples"]
    ranks = np.zeros(counts.shape, dtype=np.uint32)
    ranks[place] = table["rank"].to_numpy() + 1
    fig = go.Figure(
        go.Heatmap(
            z=counts,
            zmin=0,
            zmax=num_samples,
            colorscale=colorscale(),
            colorbar=colorbar("samples", dark),
            customdata=ranks,
            hoverongaps=False,
            hovertemplate=(
                "layer %{y}, expert %{x}<br>on paths of %{z} of "
                f"{num_samples} samples<br>rank %{{customdata}}<extra></extra>"
            ),
        )
    )
    apply_theme(fig, dark)
    every = max(1, len(layers) // 12)
    fig.update_layout(height=int(np.clip(len(layers) * 26, 190, 460)) + 70, margin={"t": 20})
    fig.update_xaxes(title_text="expert", showgrid=False)
    fig.update_yaxes(
        title_text="layer",
        range=[len(layers) - 0.5, -0.5],
        tickvals=list(range(len(layers)))[::every],
        ticktext=[str(layer) for layer in layers[::every]],
        showgrid=False,
    )
    return fig


def describe(table: pd.DataFrame, num_samples: int) -> str:
    """One sentence: how many experts are on every sample's paths, on some, on none."""
    always = int((table["num_samples"] == num_samples).sum())
    never = int((table["num_samples"] == 0).sum())
    return (
        f"Of {len(table)} experts {always} are on paths of all {num_samples} samples, "
        f"{len(table) - always - never} on those of some, {never} on none."
    )
