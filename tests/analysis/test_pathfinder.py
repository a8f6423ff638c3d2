"""MoE Pathfinder as a criterion: the order of its paths, blends that weigh samples, refusals."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibrations import calibrated, describe, make_sequences

from analysis.criteria import get_criterion
from analysis.criteria.pathfinder import pathfinder
from analysis.errors import CriterionError
from analysis.ranking.experts import has_columns, rank_experts, scored
from analysis.ranking.trajectory import follow
from analysis.stats.blend import Part, blend
from analysis.stats.shards import stats_at
from analysis.stats.store import load_expert_stats, load_sample_stats

COUNT = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of as many tokens: 5 + 7 and 8 + 4."""
    described = describe(tmp_path_factory.mktemp("tiny"), "olmoe")
    stats = tmp_path_factory.mktemp("stats")
    groups = ("routed", "dense")
    corpora = make_sequences((5, 7), 1, "a.jsonl"), make_sequences((8, 4), 2, "b.jsonl")
    return [calibrated(described, stats, each, dtype="float64", groups=groups) for each in corpora]


def test_score_and_order_are_those_of_the_table_of_paths(runs):
    stats = load_expert_stats(runs[0])
    score, saliency = scored(pathfinder(COUNT), stats, "applied")
    table = follow(load_sample_stats(runs[0]), COUNT).table(COUNT)
    assert score.tolist() == table["num_samples"].tolist()
    # The first to keep has as many experts behind it as there are others.
    assert saliency.tolist() == (len(table) - 1 - table["rank"]).tolist()
    ranked = rank_experts(pathfinder(COUNT), stats, "applied")
    for layer, rows in ranked.groupby("layer"):
        within = table[table["layer"] == layer].sort_values("rank")["expert"].tolist()
        assert rows.sort_values("rank")["expert"].tolist() == within
    # Routed tokens are counted as for any criterion of a calibration.
    assert ranked["num_tokens"].tolist() == stats.table["num_tokens"].tolist()


def test_a_blend_counts_each_sample_by_its_weight(runs):
    """Weight 1 and 3 of as many tokens: a sample of the first counts a third of the other's."""
    blended = blend([Part(runs[0], 1.0), Part(runs[1], 3.0)])
    score, _ = scored(pathfinder(COUNT), blended, "applied")
    alone = [scored(pathfinder(COUNT), load_expert_stats(run), "applied")[0] for run in runs]
    assert score.tolist() == pytest.approx((alone[0] / 3 + alone[1]).tolist())


def test_a_blend_has_the_mean_u_of_its_samples(runs):
    """Two samples a run, of weight 1 and 3: (2 a + 6 b) / 8."""
    blended = blend([Part(runs[0], 1.0), Part(runs[1], 3.0)])
    found = pathfinder(COUNT).from_samples(blended.samples)["node_weight"]
    one, two = (follow(load_sample_stats(run), COUNT).table(COUNT)["node_weight"] for run in runs)
    assert found.tolist() == pytest.approx(((one + 3 * two) / 4).tolist(), rel=1e-12)


def test_paths_are_followed_once(runs):
    stats, read = load_expert_stats(runs[0]), []
    (part,) = stats.samples

    def reading():
        read.append(True)
        return part.read()

    counted = replace(stats, samples=(replace(part, read=reading),))
    for _ in range(3):
        scored(pathfinder(COUNT), counted, "applied")
    assert len(read) == 1
    scored(pathfinder(COUNT + 1), counted, "applied")
    assert len(read) == 2


def test_statistics_without_samples_are_refused(runs):
    stats = load_expert_stats(runs[0])
    assert has_columns(get_criterion("pathfinder"), stats)
    for lacking in (replace(stats, samples=()), stats_at(runs[0], 4)):
        assert not has_columns(get_criterion("pathfinder"), lacking)
        with pytest.raises(CriterionError, match="calibrate with --groups routed,dense"):
            scored(get_criterion("pathfinder"), lacking, "applied")


def test_an_expert_on_no_path_is_after_all_that_are_on_one():
    """By hand: three experts on paths of 2, 1 and 0 samples; the last has the largest u."""
    table = pd.DataFrame(
        {
            "path_samples": [1.0, 0.0, 2.0],
            "path_weight": [-1.0, -np.inf, -3.0],
            "node_weight": [-5.0, 0.0, -5.0],
        }
    )
    assert get_criterion("pathfinder").order(table).tolist() == [1.0, 0.0, 2.0]
    # As many samples: the heavier path, then the larger u, then the lower place.
    ties = pd.DataFrame(
        {
            "path_samples": [1.0, 1.0, 1.0, 1.0],
            "path_weight": [-2.0, -1.0, -2.0, -2.0],
            "node_weight": [-5.0, -9.0, -4.0, -5.0],
        }
    )
    assert get_criterion("pathfinder").order(ties).tolist() == [1.0, 3.0, 2.0, 0.0]
