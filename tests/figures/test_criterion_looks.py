"""A criterion has one colour on every chart, in light and in dark, that can be told from others."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, get_criterion, unified
from analysis.ranking.compare import FATES
from app.charts import (
    capability,
    evaluation_curves,
    hidden_states,
    kept_by,
    loss_bins,
    overlap_by_tokens,
    pareto,
    same_bytes,
    theme,
    winner_map,
)
from app.charts.criterion_looks import criterion_look, looks
from app.charts.names import FULL
from pruning.records.bins import BIN_COLUMNS

PRESETS = {criterion.name: criterion for criterion in (CRITERIA | NEURON_CRITERIA).values()}
EVERY = PRESETS | {
    criterion.name: criterion for criterion in (unified(*variant) for variant in RANKABLE)
}
# Machado, Oliveira and Fernandes 2009, severity 1, of linear RGB.
DEUTAN = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
PROTAN = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
SIGHTS = {"usual": np.eye(3), "deutan": np.array(DEUTAN), "protan": np.array(PROTAN)}
# Ottosson's OKLab, in which 0.02 is about what an eye can tell.
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def seen(color, sight):
    parts = np.array([int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(SIGHTS[sight] @ linear, 0, 1))


def spare(look, other, sight):
    """By how much two looks differ more than they have to."""
    needed = 0.15 if look.symbol == other.symbol else 0.08 if sight == "usual" else 0
    return np.linalg.norm(seen(look.color, sight) - seen(other.color, sight)) - needed


def free_color(drawn, name, dark):
    """The legible colour, of 512 tried, that differs most from the other criteria's."""
    others = [look for other, look in drawn.items() if other != name]

    def margin(color):
        look = replace(drawn[name], color=color)
        return min(spare(look, other, sight) for other in others for sight in SIGHTS)

    steps = range(0, 256, 36)
    colors = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in product(steps, repeat=3)]
    return max((c for c in colors if theme.contrast(c, theme.paper(dark)) >= 3), key=margin)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True])
def test_any_two_criteria_can_be_told_apart(dark, sight):
    drawn = {name: criterion_look(name, dark) for name in PRESETS if name != "random"}
    for first, second in combinations(drawn, 2):
        margin = spare(drawn[first], drawn[second], sight)
        free = {name: free_color(drawn, name, dark) for name in (first, second) if margin <= 0}
        assert margin > 0, f"{first} and {second} look alike; colours that do not: {free}"


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True])
def test_the_sides_of_a_comparison_can_be_told_apart_whatever_they_are(dark, sight):
    # EAN and SEER are known by their markers, which cells lack: their colours are 0.11 apart.
    row = {"layer": 3, "rank_a": 0, "rank_b": 0}
    table = pd.DataFrame([{**row, "expert": i, "kept_by": fate} for i, fate in enumerate(FATES)])
    figure = kept_by.kept_by_map(table, ("EAN", "SEER"), dark=dark)
    colors = [trace.marker.color for trace in figure.data if trace.name]
    assert len(colors) == len(FATES)
    for first, second in combinations(colors, 2):
        assert np.linalg.norm(seen(first, sight) - seen(second, sight)) > 0.15


@pytest.mark.parametrize("dark", [False, True])
def test_a_free_color_can_be_told_from_every_other(dark):
    drawn = {name: criterion_look(name, dark) for name in PRESETS if name != "random"}
    others = [look for name, look in drawn.items() if name != "reap"]
    look = replace(drawn["reap"], color=free_color(drawn, "reap", dark))
    assert theme.contrast(look.color, theme.paper(dark)) >= 3
    assert all(spare(look, other, sight) > 0 for other in others for sight in SIGHTS)


@pytest.mark.parametrize("dark", [False, True])
def test_every_criterion_stands_out_and_no_two_look_alike(dark):
    drawn = {name: criterion_look(name, dark) for name in EVERY}
    for look in drawn.values():
        assert theme.contrast(look.color, theme.paper(dark)) >= 3
    assert len({look.color for look in drawn.values()}) == len(EVERY)
    assert criterion_look("random", dark).color == theme.muted(dark)
    assert looks(["Random (draw 3)"], dark)["Random (draw 3)"].color == theme.muted(dark)
    assert looks([FULL], dark)[FULL].color == theme.ink(dark)
    assert criterion_look("camera-p:0.5", dark) == criterion_look("camera-p", dark)
    # S(1,1,0) lies at the squared distances 1, 2 and 5 of REAP, MAN and MSAN.
    named = [criterion_look(name, dark).color for name in ("reap", "man", "msan")]
    reds = [int(color[1:3], 16) for color in named]
    expected = round((reds[0] + reds[1] / 2 + reds[2] / 5) / (1 + 1 / 2 + 1 / 5))
    assert int(criterion_look("1,1,0", dark).color[1:3], 16) == expected


def test_series_of_one_criterion_differ_by_dash_and_filling_of_the_corpus():
    names = ["MAN on code", "MAN on math", "REAP on code", "REAP on math", "Manual", FULL]
    drawn = looks(names, dark=False)
    assert drawn["MAN on code"].color == drawn["MAN on math"].color
    assert drawn["MAN on code"].dash != drawn["MAN on math"].dash
    fillings = [drawn[name].symbol.partition("-")[2] for name in names[:4]]
    assert fillings[0] == fillings[2] != fillings[1] == fillings[3]
    known = {criterion_look(name, dark=False).color for name in EVERY}
    assert drawn["Manual"].color not in known


def figures_of(label, name, dark):
    """Figures in which a criterion is one series of two, and never the first."""
    both = ["MAN" if label != "MAN" else "REAP", label]
    pairs = [(series, share) for series in both for share in (0.25, 0.5)]
    curve = pd.DataFrame(pairs, columns=["series", "sparsity"]).assign(
        overlap=0.6, chance=0.5, kind="pairs"
    )
    parts = curve.assign(criterion=curve["series"], tokens=100, corpus="code")
    yield overlap_by_tokens.parts_curve(parts, dark=dark)
    scores = pd.DataFrame({"ARC": [0.6, 0.5]}, index=[f"{series} on code, 50%" for series in both])
    yield capability.capability_dots(scores, dark=dark)
    states = pd.DataFrame({"candidate": scores.index, "layer": 3, "variance": 1.0})
    yield hidden_states.variance_lines(states, dark=dark)
    measured = curve.assign(corpus="code", series=curve["series"] + " on math", removed=0.5)
    measured = measured.assign(mean=1.0, low=0.9, high=1.1)
    yield evaluation_curves.curves_figure(measured, label="loss", dark=dark)
    points = pd.DataFrame({"candidate": scores.index, "bytes": [2.0, 1.0], "value": [1.0, 2.0]})
    points = points.assign(removed=0.5, low=np.nan, high=np.nan, is_full=False)
    quality = pareto.Quality("loss", "loss", higher_is_better=False)
    yield pareto.pareto_drawing(points, quality, "").figure(dark=dark)
    same = pd.DataFrame({"candidate": [f"{series}, neurons global" for series in both]})
    same = same.assign(corpus="code", granularity="neuron", removed=0.5, bytes=1, loss=1.0)
    yield same_bytes.same_bytes(same.assign(full=0.5, change=[0.5, 0.4]), dark=dark)
    won = pd.DataFrame({"setting": "50%", "benchmark": ["a", "b"], "winner": scores.index})
    won = won.assign(score=0.5, margin=0.1, tied=1, candidates=2)
    yield winner_map.winner_map(won, dark=dark)
    bins = pd.DataFrame([(0, 3, 1.0, 0.25, 0.1, 0.05, 0.2, 0.1)], columns=list(BIN_COLUMNS))
    yield loss_bins.loss_bins(
        bins, criterion=name, granularity="expert", order="saliency", dark=dark
    )


@pytest.mark.parametrize("dark", [False, True])
def test_a_series_has_the_look_of_its_criterion_by_label_or_name(dark):
    for name in EVERY:
        look = criterion_look(name, dark)
        for words in (name, f"{get_criterion(name).label} on code", f"{name}, layer"):
            (drawn,) = looks([words], dark).values()
            assert (drawn.color, drawn.symbol) == (look.color, look.symbol), words


# The look of a criterion is the same on every chart, so a few stand for all of them.
@pytest.mark.parametrize(
    ("name", "dark"), [("reap", False), ("camera-p", True), ("1,1,2", True), ("random", False)]
)
def test_a_criterion_has_its_one_colour_on_every_chart(name, dark):
    color = criterion_look(name, dark).color
    for figure in figures_of(get_criterion(name).label, name, dark):
        assert color in figure.to_json(), figure.layout
