"""Bytes before and after, in GiB or MiB."""

import pytest

from app.charts.sizes import describe, size_text, sizes_figure


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.00 MiB"),
        (5.72 * 1024**2, "5.72 MiB"),
        (1024**3 - 1, "1024 MiB"),
        (1024**3, "1.00 GiB"),
        (29.93 * 1024**3, "29.9 GiB"),
        (512 * 1024**3, "512 GiB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(num_bytes, text):
    assert size_text(num_bytes) == text


def test_parts_are_stacked_in_table_order_and_totalled(sizes):
    fig = sizes_figure(sizes)
    assert [trace.name for trace in fig.data] == ["routed experts", "attention"]
    assert list(fig.data[0].x) == [50, 25]
    assert list(fig.data[0].y) == ["before", "after"]
    assert fig.layout.barmode == "stack"
    totals = [annotation.text for annotation in fig.layout.annotations]
    assert totals == ["<b>54.0 GiB</b>", "<b>29.0 GiB</b>"]
    assert fig.layout.xaxis.title.text == "weights, GiB"


def test_parts_differ_by_more_than_colour(sizes):
    first, second = sizes_figure(sizes, dark=True).data
    assert first.marker.pattern.shape != second.marker.pattern.shape
    assert first.marker.color != second.marker.color


def test_narrow_segments_keep_their_label_for_the_hover(sizes):
    attention = sizes_figure(sizes).data[1]
    assert attention.text == ("", "")
    assert list(attention.customdata) == ["4.00 GiB", "4.00 GiB"]


def test_small_models_are_shown_in_mib(sizes):
    small = sizes.assign(before=sizes["before"] / 1024, after=sizes["after"] / 1024)
    fig = sizes_figure(small)
    assert fig.layout.xaxis.title.text == "weights, MiB"
    assert list(fig.data[0].x) == [50, 25]


def test_description_names_the_part_that_gives_most(sizes):
    assert describe(sizes) == (
        "The weights shrink from 54.0 GiB to 29.0 GiB (-46%), mostly in routed experts."
    )
    assert describe(sizes.assign(after=sizes["before"])) == (
        "The weights take 54.0 GiB; nothing is saved."
    )


def test_an_empty_model_draws(sizes):
    fig = sizes_figure(sizes.assign(before=0, after=0))
    assert list(fig.layout.xaxis.range) == [0, 1]
