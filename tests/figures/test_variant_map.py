"""The principle map: 17 numbers, one hatched cell, names, outline, clicks."""

import numpy as np
import pytest

from app.charts.overlap_map import VARIANT_NAMES, clicked_variant, describe, variant_map
from app.charts.theme import color_at, contrast


def texts(fig):
    return [annotation["text"] for annotation in fig.to_dict()["layout"]["annotations"]]


def traces(fig, kind):
    return [trace for trace in fig.data if trace.type == kind]


def test_rows_are_alpha_and_columns_beta_within_b(variants):
    left, right = traces(variant_map(variants), "heatmap")
    assert np.asarray(left.z, float)[2].tolist() == [0.1, 0.5, 0.5]
    assert np.asarray(right.z, float)[0, 1:].tolist() == [0.5, 0.9]
    assert (left.zmin, left.zmax) == (0, 1)


def test_constant_variant_is_never_a_number(variants):
    table = variants.assign(b=variants["b"])
    table.loc[len(table)] = [1, 0, 0, 1.0]
    for given in (variants, table):
        fig = variant_map(given)
        assert np.isnan(np.asarray(traces(fig, "heatmap")[1].z, float)[0, 0])
        assert sum("N/A" in text for text in texts(fig)) == 1
    assert traces(fig, "scatter")[0].fillpattern.shape == "/"


def test_missing_and_nan_variants_say_so(variants):
    table = variants.iloc[1:].copy()
    table.loc[table.index[0], "overlap"] = np.nan
    assert sum("no data" in text for text in texts(variant_map(table))) == 2


def test_eight_variants_are_named(variants):
    # The longest name is broken over two lines.
    shown = " ".join(texts(variant_map(variants))).replace("</span><br>", " ")
    plain = shown.replace("<span style='font-size:11px'>", "")
    assert all(name in plain for name in VARIANT_NAMES.values())


def test_numbers_contrast_with_their_cell(variants):
    for annotation in variant_map(variants).to_dict()["layout"]["annotations"]:
        number = annotation["text"].split("<br>")[0]
        if number in ("0.10", "0.50", "0.90"):
            assert contrast(annotation["font"]["color"], color_at(float(number))) >= 4.5


def test_selected_variant_is_outlined(variants):
    assert not variant_map(variants).layout.shapes
    halo, line = variant_map(variants, selected=(0, 2, 1)).layout.shapes
    assert (line.x0, line.x1, line.y0, line.y1) == (0.5, 1.5, 1.5, 2.5)
    assert halo.line.width > line.line.width


def test_every_variant_can_be_clicked(variants):
    targets = traces(variant_map(variants), "scatter")[1]
    assert len({tuple(data) for data in targets.customdata}) == 18
    assert targets.marker.opacity == targets.selected.marker.opacity == 0
    assert targets.unselected.marker.opacity == 0


@pytest.mark.parametrize(
    ("points", "variant"),
    [
        ([{"customdata": [1, 0, 2]}], (1, 0, 2)),
        ([{"customdata": [1, 0, 0]}], (1, 0, 0)),
        ([], None),
        ([{"customdata": [2, 0, 0]}], None),
        ([{"customdata": ["x", 0, 0]}], None),
        ([{"customdata": [1, 0]}], None),
        ([{}], None),
    ],
)
def test_click_is_read_and_checked(points, variant):
    assert clicked_variant({"selection": {"points": points}}) == variant


def test_no_event_is_no_click():
    assert clicked_variant(None) is None
    assert clicked_variant({}) is None


@pytest.mark.parametrize("dark", [False, True])
def test_both_themes_draw_the_same_cells(variants, dark):
    fig = variant_map(variants, dark=dark)
    assert len(texts(fig)) == 18 + 2
    assert [trace.type for trace in fig.data] == ["heatmap", "heatmap", "scatter", "scatter"]


def test_description_names_the_extremes(variants):
    assert describe(variants) == (
        "Of 17 variants, MSAN (1, 0, 2) depends least on the calibration text (overlap 0.90) "
        "and (0, 2, 0) most (0.10)."
    )
    assert "No overlap" in describe(variants.iloc[:0])
