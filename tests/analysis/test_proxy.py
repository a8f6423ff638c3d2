"""Exact damage against every variant: numbers against scipy and plain Python."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis.criteria import CRITERIA, get_criterion, unified
from analysis.criteria.base import Needs, needs_of
from analysis.files.shipped import SHIPPED_STATS
from analysis.ranking.experts import can_rank
from analysis.ranking.overlap import overlap_of_parts
from analysis.ranking.proxy import damage_table, proxy_overlap, proxy_quality
from analysis.stats.reading import load_expert_stats
from analysis.stats.shards import TOKEN_PARTS, stats_at
from analysis.stats.store import read_run


@pytest.fixture(scope="module")
def run():
    (path,) = SHIPPED_STATS.glob("demo-demo-math-*")
    return read_run(path)


@pytest.fixture(scope="module")
def stats(run):
    return load_expert_stats(run)


def test_quality_of_one_variant_against_scipy(stats):
    found = proxy_quality(stats, "applied").set_index("criterion").loc["ean"]
    table = stats.table
    taus, shared = [], {25: [], 50: []}
    for _, rows in table.groupby("layer"):
        taus.append(scipy_stats.kendalltau(rows["damage"], rows["g0_f1"]).statistic)
        for percent, overlaps in shared.items():
            count = 32 * percent // 100
            gone = [
                set(rows.sort_values([name, "expert"], ascending=[True, False])["expert"][:count])
                for name in ("damage", "g0_f1")
            ]
            overlaps.append(len(gone[0] & gone[1]) / count)
    assert found["kendall_tau"] == pytest.approx(np.mean(taus))
    for percent, overlaps in shared.items():
        assert found[f"overlap_{percent}"] == pytest.approx(np.mean(overlaps))
    both = table[(table["damage"] > 0) & (table["g0_f1"] > 0)]
    expected = scipy_stats.pearsonr(np.log(both["damage"]), np.log(both["g0_f1"])).statistic
    assert found["pearson_log"] == pytest.approx(expected)


def test_quality_of_the_papers_proxy_is_what_the_command_prints(stats):
    found = proxy_quality(stats, "applied").set_index("criterion").loc["gate-ean"]
    printed = proxy_overlap(stats)["overlap"].tolist()
    assert [found["overlap_25"], found["overlap_50"]] == pytest.approx(printed)


def test_every_rankable_variant_is_judged_best_first(stats):
    table = proxy_quality(stats, "renormalized", (Fraction(1, 4),))
    assert len(table) == 17
    assert table["overlap_25"].is_monotonic_decreasing
    assert table[["kendall_tau", "pearson_log"]].abs().max().max() <= 1


def test_damage_table_has_both_scores(stats):
    table = damage_table(stats, unified(1, 1, 1), "applied")
    assert table["damage"].tolist() == stats.table["damage"].tolist()
    tokens = stats.table["num_tokens"].clip(lower=1)
    assert table["proxy"].tolist() == pytest.approx(
        (stats.table["applied_g1_f1"] / tokens).tolist()
    )


def test_parts_that_are_at_hand_give_what_the_run_gives(run):
    criterion = get_criterion("reap")
    seen = [stats_at(run, parts) for parts in TOKEN_PARTS]
    found = overlap_of_parts(seen, criterion, "applied", Fraction(1, 2))
    assert found["tokens"].tolist() == [8192, 16384, 32768, 65536]
    assert found["overlap"].iloc[-1] == 1


def test_which_criteria_read_a_part_of_the_tokens(run):
    part = stats_at(run, 1)
    can = {name for name in CRITERIA if can_rank(CRITERIA[name], part)}
    # MoNE needs the vector sum, which is kept for all tokens only; the others read no text.
    cannot = {"mone", "heapr", "camera-p", "pathfinder", "aimer", "magnitude", "hoyer", "random"}
    assert set(CRITERIA) - can == cannot
    assert can_rank(CRITERIA["mone"], stats_at(run, 8))


# What the formulas name: f is an activation, g a gate weight.
NEEDS = {
    "frequency": "d",
    "seer": "dg",
    "ean": "da",
    "reap": "dag",
    "man": "da",
    "msan": "da",
    "gate-ean": "dag",
    "squared-gate-energy": "dag",
    "mone": "dag",
    "damage": "dag",
    "aimer": "w",
    "magnitude": "w",
    "hoyer": "w",
    "random": "",
}


@pytest.mark.parametrize("name", NEEDS)
def test_needs(name):
    needs = needs_of(CRITERIA[name])
    letters = zip("dagw", (needs.data, needs.activations, needs.gates, needs.weights), strict=True)
    assert "".join(letter for letter, is_needed in letters if is_needed) == NEEDS[name]


def test_needs_of_a_variant_without_a_name():
    assert needs_of(unified(0, 2, 0)) == Needs(True, False, True, False)
    assert needs_of(unified(1, 0, 2)) == Needs(True, True, False, False)
