"""Component effects and the overlap of all texts, by hand and by sets."""

from fractions import Fraction
from math import isnan

import numpy as np
import pandas as pd
import pytest

from analysis.criteria import get_criterion
from analysis.families import MoELayer
from analysis.ranking.overlap import (
    chance_overlap,
    component_effects,
    corpora_overlap,
    effects_over_models,
)
from analysis.stats.grid import Grid


def test_effects_by_hand():
    means = pd.DataFrame(
        [(0, 0, 0, 0.2), (0, 1, 0, 0.4), (1, 1, 1, 0.9)], columns=["b", "alpha", "beta", "overlap"]
    )
    table = component_effects(means).set_index(["component", "value"])
    assert table.loc[("b", 0), "overlap"] == pytest.approx(0.3)
    assert table.loc[("b", 1), "overlap"] == pytest.approx(0.9)
    assert table.loc[("alpha", 1)].tolist() == pytest.approx([0.65, 0.4, 0.9, 2])
    assert ("beta", 2) not in table.index


def test_overlap_of_all_texts_by_sets(make_expert_stats):
    stats = {str(seed): make_expert_stats(seed, str(seed)) for seed in range(3)}
    sets = {}
    for name, each in stats.items():
        for layer, rows in each.table.groupby("layer"):
            # Of five experts, 60% are three; frequency keeps the most tokens, then the lower id.
            order = rows.sort_values(["num_tokens", "expert"], ascending=[True, False])
            sets[name, layer] = set(order["expert"][:3])
    shares = [len(sets["0", layer] & sets["1", layer] & sets["2", layer]) / 3 for layer in (1, 3)]
    found = corpora_overlap(get_criterion("frequency"), stats, "applied", Fraction(3, 5))
    assert found == pytest.approx(sum(shares) / 2)


def test_chance_of_all_texts():
    grid = Grid((MoELayer(0, 4, 1), MoELayer(1, 8, 1)))
    assert chance_overlap(grid, Fraction(1, 2), 3) == 0.25
    # 3 of 8 are 37.5%, of 4 one is 25%.
    expected = ((1 / 4) ** 2 + (3 / 8) ** 2) / 2
    assert chance_overlap(grid, Fraction(2, 5), 3) == pytest.approx(expected)
    assert isnan(chance_overlap(grid, Fraction(0), 3))


def test_random_sets_reach_the_chance_of_all_texts():
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(4000):
        first, second, third = (set(generator.permutation(8)[:4].tolist()) for _ in range(3))
        shares.append(len(first & second & third) / 4)
    expected = chance_overlap(Grid((MoELayer(0, 8, 1),)), Fraction(1, 2), 3)
    assert np.mean(shares) == pytest.approx(expected, abs=0.01)


def test_effects_over_models_by_hand():
    # Two models that differ in two variants only: every model counts the same.
    rows = [(0, 0, 1), (1, 0, 1)]
    one, two = (
        pd.DataFrame(rows, columns=["b", "alpha", "beta"]).assign(overlap=overlaps)
        for overlaps in ((0.2, 0.6), (0.4, 1.0))
    )
    table = effects_over_models([one, two]).set_index(["component", "value"])
    assert table.loc[("b", 0), "overlap"] == pytest.approx(0.3)
    assert table.loc[("b", 1), "overlap"] == pytest.approx(0.8)
    assert table.loc[("alpha", 0)].tolist() == pytest.approx([0.55, 0.2, 1.0, 4])
    alone = effects_over_models([one])
    assert alone.equals(component_effects(one))
