"""Explore, Pairs: the experts of two corpora by set arithmetic on the shipped sums."""

import pytest
from page_texts import loaded_on, texts

from app.charts.listing import CHARTS
from app.charts.theme import chance_color, color_at
from app.pages.explore.corpora import pair_label

KEPT = 16  # of 32 experts of a layer


def kept_by_hand(table):
    """The (layer, expert) of the largest sums of norms of each layer."""
    ordered = table.sort_values(["g0_f1", "expert"], ascending=[False, True])
    rows = ordered.groupby("layer").head(KEPT)
    return set(zip(rows["layer"], rows["expert"], strict=True))


def test_the_map_of_a_pair_is_the_difference_of_two_sets(open_page, demo_moments):
    first, second = "demo-code", "demo-stories"
    a, b = (kept_by_hand(demo_moments[corpus]) for corpus in (first, second))
    test = open_page("explore", tab="Corpora", pair=pair_label(second, first), criterion="ean")
    [said] = [text for text in texts(test.text) if text.startswith("Of 192 experts ")]
    assert said == (
        f"Of 192 experts {first} alone (A) keeps {len(a - b)}, {second} alone (B) {len(b - a)}, "
        f"and both keep {len(a & b)}."
    )
    chosen = loaded_on(test).choosing(pair=(first, second))
    table = CHARTS["pair-map"].draw(chosen).table
    fates = {"only A": a - b, "only B": b - a, "both": a & b}
    for fate, experts in fates.items():
        rows = table[table["kept_by"] == fate]
        assert set(zip(rows["layer"], rows["expert"], strict=True)) == experts, fate
    layers = CHARTS["pair-agreement"].draw(chosen).table.set_index("layer")["agreement"]
    for layer, agreement in layers.items():
        apart = sum(place[0] == layer for place in a ^ b)
        assert agreement == pytest.approx(1 - apart / 32)


def test_without_a_pair_the_command_draws_the_one_that_agrees_least(open_page):
    test = open_page("explore", tab="Corpora", criterion="ean")
    assert not [text for text in texts(test.text) if "alone (A)" in text]
    pairs = CHARTS["overlap"].draw(loaded_on(test)).table
    least = pairs.sort_values("overlap").iloc[0]
    drawing = CHARTS["pair-map"].draw(loaded_on(test))
    assert f"--pair {least['corpus_a']} --pair {least['corpus_b']}" in drawing.command


def test_colours_tell_what_is_below_chance_from_what_is_above():
    def is_warm(color):
        return int(color[1:3], 16) > int(color[5:7], 16)

    for dark in (False, True):
        # 0.43 and 0.48 of a chance of 0.45.
        below, above = chance_color((0.43 - 0.45) / 0.45, dark), chance_color(0.03 / 0.55, dark)
        assert is_warm(below)
        assert not is_warm(above)
        assert chance_color(-1, dark) != below
        assert chance_color(0.5, dark) == color_at(0.5, dark)
