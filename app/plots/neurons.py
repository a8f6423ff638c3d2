"""The charts of plans of neurons: what each layer loses, and the FLOPs that are saved."""

import pandas as pd

from app.figures import neurons as figures
from app.plots.chart import Chart


def layers_chart(table: pd.DataFrame, about: str) -> Chart:
    """The fraction of each layer's neurons that goes, of a table of `layer_shares`."""
    return Chart(
        "neuron-layers",
        lambda dark: figures.layer_lines(table, dark=dark),
        table,
        figures.describe_layers(table),
        about,
    )


def flops_chart(table: pd.DataFrame, about: str, *, measured: bool) -> Chart:
    """FLOPs of experts saved per token, of tables of `flops_saved` with a column `series`."""
    return Chart(
        "neuron-flops",
        lambda dark: figures.flops_lines(table, measured=measured, dark=dark),
        table,
        figures.describe_flops(table, measured=measured),
        about,
    )
