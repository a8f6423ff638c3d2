"""Heatmaps with a row a layer: rows are places, so that layers without experts leave no hole."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go


def layer_rows(fig: go.Figure, layers: Sequence[int], row_height: int, around: int) -> None:
    """Label the rows of a heatmap with decoder indices, layer 0 on top, and give it its height.

    Args:
        fig: its y are places, 0 for the first layer.
        layers: decoder index of each row.
        row_height: pixels of a row, less where there are many.
        around: pixels of axes and margins.
    """
    fig.update_layout(height=int(np.clip(len(layers) * row_height, 190, 470)) + around)
    layer_axis(fig, layers, max(1, len(layers) // 12))
    fig.update_yaxes(title_text="layer")


def layer_axis(fig: go.Figure, layers: Sequence[int], every: int) -> None:
    """Rows from the top, every so many of them labelled with its decoder index."""
    fig.update_yaxes(
        range=[len(layers) - 0.5, -0.5],
        tickvals=list(range(len(layers)))[::every],
        ticktext=[str(layer) for layer in layers[::every]],
        showgrid=False,
    )
