"""Paths through the layers and the criterion that follows them, against every path."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from calibrations import calibrated, describe, make_sequences

from analysis.criteria import get_criterion
from analysis.criteria.pathfinder import pathfinder
from analysis.criteria.trajectory import (
    PATH_COLUMNS,
    Paths,
    Weighing,
    follow_paths,
    follow_until,
    node_weights,
    representative_samples,
    top_paths_of_samples,
    top_paths_through,
)
from analysis.errors import CorpusError, CriterionError, StatsError, UserError
from analysis.families.base import MoELayer
from analysis.ranking.coverage import Blender
from analysis.ranking.experts import has_columns, rank_experts, scored
from analysis.stats.blend import Mixture, blend
from analysis.stats.grid import Grid
from analysis.stats.manifest import Part
from analysis.stats.reading import load_expert_stats, load_sample_stats
from analysis.stats.samples import SampleStats, sample_stats
from analysis.stats.shards import stats_at

SIZES = (3, 4, 2)


def layer(index, count):
    return MoELayer(index=index, num_experts=count, top_k=1)


@pytest.fixture
def grid():
    return Grid(tuple(layer(place, count) for place, count in zip((1, 2, 5), SIZES, strict=True)))


@pytest.fixture
def stats(grid):
    rng = np.random.default_rng(3)
    tokens = np.array([5, 8, 3])
    shape = (3, sum(SIZES))
    return SampleStats(
        grid,
        tokens,
        rng.uniform(0.1, 3.0, shape) * tokens[:, None],
        rng.uniform(0.01, 1.0, shape) * tokens[:, None],
        rng.uniform(0.0, 4.0, shape) * tokens[:, None],
    )


def split(row):
    """Values of one sample, a list for each layer."""
    bounds = np.cumsum([0, *SIZES])
    return [list(row[start:end]) for start, end in pairwise(bounds)]


def softmax_of_negative(losses):
    exponentials = [math.exp(-loss) for loss in losses]
    return [value / sum(exponentials) for value in exponentials]


def weights_of_the_paper(stats, sample, parts="both", *, is_measured=False):
    """Path -> weight: a product of Eq. 5 and Eq. 8-10 as they stand.

    Measured: with the share of what goes on from i to j in place of r_j.
    """
    tokens = stats.num_tokens[sample]
    a, r, losses = (
        split(getattr(stats, name)[sample] / tokens)
        for name in ("activation", "probability", "loss")
    )
    e = [softmax_of_negative(loss) for loss in losses]
    weights = {}
    for path in product(*(range(size) for size in SIZES)):
        weight = 1.0
        if parts != "transition":
            weight = r[0][path[0]] * a[-1][path[-1]]
            weight *= math.prod(e[at][expert] for at, expert in enumerate(path))
        if parts != "importance":
            for at, (expert, after) in enumerate(pairwise(path)):
                step = r[at + 1][after]
                if is_measured:
                    row = stats.transitions[at][expert]
                    step = row[after] / row.sum() if row.sum() else 0.0
                weight *= a[at][expert] * step
        weights[path] = weight
    return weights


def heaviest(weights, count):
    return sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:count]


PARTS = pytest.mark.parametrize("parts", ["both", "importance", "transition"])
PLACES = [(at, expert) for at, size in enumerate(SIZES) for expert in range(size)]


@PARTS
def test_nodes_add_up_to_the_papers_products(stats, parts):
    for sample in range(3):
        nodes = [node[sample] for node in node_weights(stats, parts)]
        for path, weight in weights_of_the_paper(stats, sample, parts).items():
            total = sum(node[expert] for node, expert in zip(nodes, path, strict=True))
            assert total == pytest.approx(math.log(weight), abs=1e-12)


@pytest.mark.parametrize("nodes", [[], [np.zeros(0)], [np.zeros(2), np.zeros(0)]])
def test_a_layer_without_experts_has_no_paths(nodes):
    with pytest.raises(ValueError, match="each layer at least one expert"):
        top_paths_through(nodes, [np.zeros((2, 0))] * (len(nodes) - 1), 3)


@pytest.mark.parametrize("count", [1, 2, 5, 24, 100])
def test_table_against_every_path(stats, count):
    found = follow_paths(stats, count)
    table = found.table(count)
    assert tuple(table.columns) == PATH_COLUMNS
    held, best = {}, {}
    for sample in range(3):
        for path, weight in heaviest(weights_of_the_paper(stats, sample), count):
            for at, expert in enumerate(path):
                held.setdefault((at, expert), set()).add(sample)
                best[at, expert] = max(best.get((at, expert), -math.inf), math.log(weight))
    assert table["num_samples"].tolist() == [len(held.get(place, ())) for place in PLACES]
    assert table["path_weight"].fillna(-math.inf).tolist() == pytest.approx(
        [best.get(place, -math.inf) for place in PLACES]
    )
    assert found.union_size(count) == len(held)
    mean = np.concatenate(node_weights(stats), axis=1).mean(axis=0)
    order = sorted(
        range(len(PLACES)),
        key=lambda i: (
            -len(held.get(PLACES[i], ())),
            -best.get(PLACES[i], -math.inf),
            *(-mean[i], PLACES[i]),
        ),
    )
    assert table.sort_values("rank").index.tolist() == order


def test_the_smallest_count_for_a_union(stats):
    """Against the union of every number of paths in turn."""
    for num_kept in range(3, sum(SIZES) + 1):
        found = follow_until(stats, num_kept)
        wanted = next(m for m in range(1, 25) if follow_paths(stats, m).union_size(m) >= num_kept)
        assert found.smallest_count(num_kept) == wanted
    limited = follow_until(stats, sum(SIZES), limit=2)
    assert (limited.followed, limited.smallest_count(sum(SIZES))) == (2, 2)


def test_an_expert_without_output_is_on_no_path(stats):
    activation = stats.activation.copy()
    activation[:, 4] = 0.0  # expert 1 of the second layer
    table = follow_paths(replace(stats, activation=activation), 1000).table(1000)
    row = table.query("layer == 2 and expert == 1").iloc[0]
    assert row["num_samples"] == 0
    assert math.isnan(row["path_weight"])
    assert row["rank"] == len(table) - 1
    assert (table.drop(index=row.name)["num_samples"] == 3).all()


def test_samples_without_tokens_are_left_out(stats):
    padded = SampleStats(
        stats.grid,
        np.append(stats.num_tokens, 0),
        *(
            np.vstack([sums, np.zeros(sums.shape[1])])
            for sums in (stats.activation, stats.probability, stats.loss)
        ),
    )
    pd.testing.assert_frame_equal(follow_paths(padded, 3).table(3), follow_paths(stats, 3).table(3))
    assert padded.num_samples == 3
    empty = SampleStats(stats.grid, np.zeros(1, dtype=int), *(np.zeros((1, 9)),) * 3)
    with pytest.raises(StatsError, match="No sample"):
        follow_paths(empty, 1)


@PARTS
def test_measured_steps_against_every_path(stats, parts):
    rng = np.random.default_rng(5)
    counts = tuple(rng.integers(0, 4, pair) for pair in ((3, 4), (4, 2)))
    counts[0][1] = 0  # nobody went on from expert 1 of the first layer
    measured = replace(stats, transitions=counts)
    found = follow_paths(measured, 6, Weighing(parts, "measured")).table(6)
    held = {}
    for sample in range(3):
        best = heaviest(weights_of_the_paper(measured, sample, parts, is_measured=True), 6)
        for place in {(at, expert) for path, w in best if w > 0 for at, expert in enumerate(path)}:
            held[place] = held.get(place, 0) + 1
    assert found["num_samples"].tolist() == [held.get(place, 0) for place in PLACES]


def test_what_has_no_steps_needs_no_transitions(stats):
    # Without steps there is nothing that would have to be measured.
    importance = follow_paths(stats, 3, Weighing("importance", "measured")).table(3)
    pd.testing.assert_frame_equal(
        importance, follow_paths(stats, 3, Weighing("importance")).table(3)
    )
    for bad in ({"parts": "all"}, {"steps": "none"}):
        with pytest.raises(UserError, match=r"(?i)unknown"):
            Weighing(**bad)


def test_representatives_are_nearest_to_the_centres(grid):
    """Three kinds of samples, far apart; of each the one in the middle is taken."""
    rng = np.random.default_rng(0)
    centres = rng.dirichlet(np.ones(sum(SIZES)), 3)
    push = rng.normal(size=sum(SIZES)) * 1e-3
    rows = [centre + step * push for centre in centres for step in (-1.0, 0.0, 1.0)]
    tokens = np.arange(4, 14)
    tokens[9] = 0  # a sample without tokens is no candidate
    probability = np.vstack([*rows, np.zeros(sum(SIZES))]) * tokens[:, None]
    ones = np.ones_like(probability)
    stats = SampleStats(grid, tokens, ones, probability, ones)
    chosen = representative_samples(stats, 3)
    assert chosen.num_tokens.tolist() == [5, 8, 11]
    assert np.array_equal(chosen.probability, probability[[1, 4, 7]])
    with pytest.raises(UserError, match="at least 1"):
        representative_samples(stats, 0)
    with pytest.raises(CorpusError, match="fewer than 40 clusters"):
        representative_samples(stats, 40)


def test_the_table_of_samples_reads_back(stats, grid):
    table = stats.to_table()
    again = sample_stats(table, grid)
    assert again.num_tokens.tolist() == stats.num_tokens.tolist()
    for name in ("activation", "probability", "loss"):
        assert np.array_equal(getattr(again, name), getattr(stats, name))
    with pytest.raises(StatsError, match="each expert of each sample once"):
        sample_stats(table.iloc[1:], grid)


def every_path(nodes, steps=None):
    """All paths as (-weight, experts), sorted: heaviest first, then the smaller experts."""
    found = []
    for path in product(*(range(len(node)) for node in nodes)):
        weight = sum(float(node[expert]) for node, expert in zip(nodes, path, strict=True))
        if steps is not None:
            weight += sum(float(step[path[i], path[i + 1]]) for i, step in enumerate(steps))
        found.append((-weight, path))
    return sorted(found)


def top_paths(nodes, count):
    """The paths of one sample."""
    ((_, experts, weights),) = top_paths_of_samples([node[None, :] for node in nodes], count)
    return Paths(experts[0], weights[0])


def as_list(paths):
    return [
        (-float(weight), tuple(experts))
        for weight, experts in zip(paths.weights, paths.experts.tolist(), strict=True)
    ]


def dyadic(rng, *shape):
    """Multiples of 1/4 in a small range: sums are exact, and ties are many."""
    return rng.integers(-8, 1, shape) / 4


def test_so_many_candidates_that_only_the_first_are_sorted():
    rng = np.random.default_rng(0)
    samples = [dyadic(rng, 2, 20) for _ in range(3)]
    samples[1][0, 4:] = -np.inf  # the last of the first are then as good as none
    ((_, experts, weights),) = top_paths_of_samples(samples, 1700)
    for sample, (path_experts, held) in enumerate(zip(experts, weights, strict=True)):
        wanted = every_path([node[sample] for node in samples])[:1700]
        assert as_list(Paths(path_experts, held)) == wanted


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 7, 10_000])
def test_paths_against_every_path(seed, count):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, rng.integers(1, 5))
    nodes = [dyadic(rng, size) for size in sizes]
    assert as_list(top_paths(nodes, count)) == every_path(nodes)[:count]
    steps = [dyadic(rng, *pair) for pair in pairwise(sizes)]
    assert as_list(top_paths_through(nodes, steps, count)) == every_path(nodes, steps)[:count]


def test_what_cannot_be_passed_comes_last():
    paths = top_paths([np.array([0.0, -np.inf]), np.array([-1.0, -2.0])], 10)
    assert paths.experts.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert paths.weights.tolist() == [-1.0, -2.0, -np.inf, -np.inf]


COUNT = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of as many tokens: 5 + 7 and 8 + 4."""
    described = describe(tmp_path_factory.mktemp("tiny"), "olmoe")
    stats = tmp_path_factory.mktemp("stats")
    groups = ("routed", "dense")
    corpora = make_sequences((5, 7), 1, "a.jsonl"), make_sequences((8, 4), 2, "b.jsonl")
    return [
        calibrated(described, stats, corpus, dtype="float64", groups=groups) for corpus in corpora
    ]


def test_score_and_order_are_those_of_the_table_of_paths(runs):
    stats = load_expert_stats(runs[0])
    score, saliency = scored(pathfinder(COUNT), stats, "applied")
    table = follow_paths(load_sample_stats(runs[0]), COUNT).table(COUNT)
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
    # The mean u of two samples a run: (2 a + 6 b) / 8.
    found = pathfinder(COUNT).from_samples(blended.samples)["node_weight"]
    one, two = (
        follow_paths(load_sample_stats(run), COUNT).table(COUNT)["node_weight"] for run in runs
    )
    assert found.tolist() == pytest.approx(((one + 3 * two) / 4).tolist(), rel=1e-12)


def test_a_blend_keeps_the_heaviest_path_of_the_corpora_that_have_one(runs):
    """An expert on paths of one corpus alone has that corpus' weight, on none it has log 0."""
    samples = blend([Part(run, 1.0) for run in runs]).samples
    found = pathfinder(2).from_samples(samples)["path_weight"]
    one, two = (follow_paths(load_sample_stats(run), 2).table(2)["path_weight"] for run in runs)
    assert (one.isna() & two.notna()).any()
    assert (one.isna() & two.isna()).any()
    expected = [
        max((weight for weight in pair if not math.isnan(weight)), default=-math.inf)
        for pair in zip(one, two, strict=True)
    ]
    assert found.tolist() == expected


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
        with pytest.raises(CriterionError, match="calibrate with --group dense"):
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


def test_large_losses_do_not_underflow(stats):
    """exp(-5000) is 0 in float64; only differences of losses count."""
    far = replace(stats, loss=stats.loss + 5000.0 * stats.num_tokens[:, None])
    assert all(np.isfinite(node).all() for node in node_weights(far))
    assert (
        follow_paths(far, 4).table(4)["rank"].tolist()
        == follow_paths(stats, 4).table(4)["rank"].tolist()
    )


def test_a_blend_with_a_run_without_samples_has_none(runs):
    mixture = Mixture(runs)
    mixture.stats = (mixture.stats[0], replace(mixture.stats[1], samples=()))
    assert mixture.mixed([1.0, 1.0]).samples == ()


def test_an_order_is_no_coverage(runs):
    with pytest.raises(CriterionError, match="places in an order"):
        Blender(Mixture(runs), get_criterion("pathfinder"), "applied", Fraction(1, 2))
