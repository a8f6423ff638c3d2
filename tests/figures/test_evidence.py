"""Figures of parts of the tokens, of exact damage, and of the maps side by side."""

import numpy as np
import pandas as pd
import pytest

from app.charts import damage_proxy
from app.charts import overlap_by_tokens as parts_curve
from app.charts import overlap_maps as variant_grid
from app.charts.theme import color_at, contrast


@pytest.fixture
def parts():
    rows = [
        (corpus, criterion, tokens, overlap, 0.5)
        for corpus, shift in (("code", 0.0), ("math", 0.1))
        for criterion, least in (("REAP", 0.6), ("MAN", 0.8))
        for tokens, overlap in ((1000, least + shift), (4000, 1.0))
    ]
    return pd.DataFrame(rows, columns=["corpus", "criterion", "tokens", "overlap", "chance"])


@pytest.mark.parametrize("dark", [False, True])
def test_a_panel_a_text_a_line_a_criterion_and_chance(parts, dark):
    fig = parts_curve.parts_curve(parts, dark=dark)
    assert [note.text for note in fig.layout.annotations] == ["code", "math"]
    assert [each.name for each in fig.data] == ["chance", "REAP", "MAN"] * 2
    reap = fig.data[4]
    assert (list(reap.x), list(reap.y)) == (["1,000", "4,000"], [0.7, 1.0])
    assert reap.xaxis == "x2"
    # Each criterion is in the legend once, and looks the same in every panel.
    assert sum(each.showlegend is not False for each in fig.data) == 3
    assert fig.data[1].line.dash == reap.line.dash != fig.data[2].line.dash


def test_parts_description(parts):
    assert parts_curve.describe(parts) == (
        "With the smallest part of the tokens the pruned set has in common with that of all, mean "
        "over the texts: MAN 85%, REAP 65%; chance 50%."
    ) or parts_curve.describe(parts).endswith("REAP 65%, MAN 85%; chance 50%.")


@pytest.fixture
def damages():
    rows = [
        (0, 0, 10.0, 100.0, "both keep"),
        (0, 1, 1.0, 5.0, "both prune"),
        (0, 2, 0.1, 7.0, "only the damage prunes"),
        (0, 3, 0.0, 0.0, "both prune"),
    ]
    return pd.DataFrame(rows, columns=["layer", "expert", "damage", "proxy", "fate"])


def test_a_point_an_expert_and_zeros_are_counted_not_drawn(damages):
    fig = damage_proxy.damage_proxy(damages, proxy="EAN")
    assert [each.name for each in fig.data] == [
        "both keep: 1",
        "only the proxy prunes: 0",
        "only the damage prunes: 1",
        "both prune: 2",
    ]
    assert list(fig.data[3].x) == [5.0]
    assert fig.layout.xaxis.title.text == "saliency by EAN (not drawn: 1 expert at 0)"
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    assert len({each.marker.symbol for each in fig.data}) == 4
    assert damage_proxy.describe(damages, proxy="EAN") == (
        "EAN and the exact damage decide alike on 3 of 4 experts (75%)."
    )


def test_nothing_but_zeros(damages):
    fig = damage_proxy.damage_proxy(damages.assign(damage=0.0))
    # No place on a logarithmic axis: no point is drawn, and the legend still counts them.
    assert sum(len(trace.x) for trace in fig.data) == 0
    counts = [int(trace.name.rpartition(": ")[2]) for trace in fig.data if ": " in trace.name]
    assert sum(counts) == len(damages)


@pytest.fixture
def grid(variants):
    tables = [
        variants.assign(model=model, sparsity=sparsity)
        for model in ("one", "two")
        for sparsity in (0.25, 0.5)
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("dark", [False, True])
def test_a_panel_for_each_model_and_sparsity(grid, dark):
    fig = variant_grid.variant_grid(grid, selected=(0, 2, 1), dark=dark)
    titles = [note.text for note in fig.layout.annotations if "pruned" in note.text]
    assert titles == [f"{name}, {p}% pruned" for name in ("one", "two") for p in (25, 50)]
    cells = [each for each in fig.data if each.type == "heatmap"]
    assert len(cells) == 4
    z = cells[0].z
    # Rows are alpha; columns b, then beta: (1, 0, 2), (0, 2, 0), and the constant (1, 0, 0).
    assert z[0, 5] == pytest.approx(0.9)
    assert z[2, 0] == pytest.approx(0.1)
    assert np.isnan(z[0, 3])
    assert np.isfinite(z).sum() == 17


def test_numbers_read_on_their_cells(grid):
    fig = variant_grid.variant_grid(grid)
    numbers = [note for note in fig.layout.annotations if "pruned" not in note.text]
    assert len(numbers) == 4 * 18
    last = {(note.x, note.y): note.text for note in numbers if note.xref == "x4"}
    assert (last[5, 0], last[3, 0], last[0, 2]) == ("0.90", "N/A", "0.10")
    for note in numbers:
        if note.text != "N/A":
            assert contrast(note.font.color, color_at(float(note.text))) >= 4.5


def test_each_cell_says_its_variant_and_sparsity_when_clicked(grid):
    targets = [each for each in variant_grid.variant_grid(grid).data if each.type == "scatter"]
    assert len(targets) == 4
    # The sixth cell of the first row: b = 1, alpha = 0, beta = 2; the second panel is of 50%.
    assert targets[1].customdata[5] == [1, 0, 2, 50]
    assert (targets[1].x[5], targets[1].y[5]) == (5, 0)


@pytest.mark.parametrize(
    ("point", "found"),
    [
        ([1, 0, 2, 25], ((1, 0, 2), 25)),
        ([1, 0, 3, 25], None),
        ([1, 0, 2, 101], None),
        ([1, 0, 2], None),
        ("text", None),
        (None, None),
    ],
)
def test_a_click(point, found):
    assert variant_grid.clicked_cell({"selection": {"points": [{"customdata": point}]}}) == found
    assert variant_grid.clicked_cell({"selection": {"points": []}}) is None


def test_grid_description(grid):
    assert variant_grid.describe(grid) == (
        "Least dependent on the text, by share pruned: 25% MSAN (1, 0, 2) (0.90); "
        "50% MSAN (1, 0, 2) (0.90)."
    )
