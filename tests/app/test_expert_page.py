"""The page of one expert: its sums and ranks, the plans that drop it, what breaks without it."""

import re
from fractions import Fraction
from itertools import product

import pandas as pd
import pytest
from page_texts import ALL_CORPORA, MEASURED_CORPORA, opened, table_with, texts

from analysis.criteria import unified
from analysis.files.shipped import SHIPPED_STATS
from app.charts.evaluations import plan_name
from app.tables.experts import corpus_shares, rank_summary
from builders.statistics import stats_of
from pruning.planning import make as planning
from pruning.records.lens import LensStore

BLEND = {"criterion": "ean", "corpora": ALL_CORPORA}


def test_the_numbers_of_an_expert_are_those_of_the_shipped_sums(open_page, demo_moments):
    test = open_page("expert", expert="3.7", sparsity="25%", corpora="demo-code")
    means = table_with(test, "number").set_index("number")
    for corpus, table in demo_moments.items():
        row = table[(table["layer"] == 3) & (table["expert"] == 7)].iloc[0]
        layer = table[table["layer"] == 3]
        expected = {
            "routed tokens": row["num_tokens"],
            "share of routed tokens": row["num_tokens"] / layer["num_tokens"].sum(),
            "mean gate, applied": row["applied_g1_f0"] / row["num_tokens"],
            "mean gate, renormalized": row["renormalized_g1_f0"] / row["num_tokens"],
            "mean norm of the output": row["g0_f1"] / row["num_tokens"],
        }
        assert means[corpus].to_dict() == pytest.approx(expected)
    ranks = table_with(test, "kept at 25%").set_index("criterion")
    variants = {unified(*exponents).label for exponents in product((0, 1), (0, 1, 2), (0, 1, 2))}
    others = {"MoNE", "Exact damage", "AIMER", "Magnitude", "Hoyer", "Random"}
    assert len(variants) == 18
    assert variants | others <= set(ranks.index)
    assert ranks.loc["S(1,0,0)", "kept at 25%"] == "all equal"
    kept = 0
    for corpus, table in demo_moments.items():
        layer = table[table["layer"] == 3].set_index("expert")
        score = layer["applied_g1_f1"] / layer["num_tokens"].clip(lower=1)
        rank = int((score > score[7]).sum()) + 1
        assert ranks.loc["REAP", corpus] == rank
        kept += rank <= 24
    assert ranks.loc["REAP", "kept at 25%"] == f"{kept} of 3"
    # What reads no text ranks alike under each.
    assert len(set(ranks.loc["AIMER", list(demo_moments)])) == 1
    assert ranks.loc["AIMER", "kept at 25%"] in ("any corpus", "no corpus")


def test_a_super_expert_is_called_one(open_page, demo_moments):
    # Of 160 experts of the first three quarters of the layers, one is above 99.5%: the largest.
    table = demo_moments["demo-code"]
    early = table[(table["layer"] < 0.75 * 6) & (table["num_tokens"] > 0)]
    peak = early.loc[early["largest_output"].idxmax()]
    layer, expert = int(peak["layer"]), int(peak["expert"])
    times = peak["largest_output"] / early["largest_output"].median()
    test = open_page("expert", expert=f"{layer}.{expert}")
    (words,) = [t for t in texts(test.markdown) if f"Layer {layer}, expert {expert}" in t]
    assert words.endswith(f"it is a super expert on demo-code ({times:.3g} times the median).")


def test_an_expert_without_tokens_has_no_means(open_page, never):
    corpus, (layer, expert) = next((corpus, found[0]) for corpus, found in never.items() if found)
    test = open_page("expert", expert=f"{layer}.{expert}")
    means = table_with(test, "number").set_index("number")[corpus]
    assert means["routed tokens"] == 0
    assert means.filter(like="mean").isna().all()
    assert any(corpus in text and "reached it" in text for text in texts(test.markdown))


def test_ranks_by_hand():
    ranks = pd.DataFrame(
        [("MAN", "x", 3, 8, 0.1), ("MAN", "y", 7, 8, 0.2), ("AIMER", "weights", 4, 8, 0.3)],
        columns=["criterion", "source", "rank", "of", "score"],
    )
    # Half of 8 stay: ranks 1 to 4.
    table = rank_summary(ranks, Fraction(1, 2)).set_index("criterion")
    assert table["kept"].to_dict() == {
        "S(1,0,0)": "all equal",
        "MAN": "1 of 2",
        "AIMER": "any corpus",
    }
    assert table.loc["MAN", ["x", "y"]].tolist() == [3, 7]
    assert table.loc["AIMER", ["x", "y"]].tolist() == [4, 4]
    # Without any text there is one column.
    alone = rank_summary(ranks[ranks["source"] == "weights"], Fraction(3, 4)).set_index("criterion")
    assert alone.loc["AIMER"].tolist() == ["no corpus", 4]
    assert pd.isna(alone.loc["S(1,0,0)", "rank"])


@pytest.mark.parametrize("place", [(3, 18), (0, 2), (5, 13)])
def test_plans_that_drop_it_are_those_whose_runs_recorded_it(open_page, place):
    layer, expert = place
    test = open_page("expert", expert=f"{layer}.{expert}", **BLEND)
    fates = table_with(opened(test, "expert-plans"), "fate").set_index("plan")["fate"].to_dict()
    record, *_ = LensStore([SHIPPED_STATS]).records()
    compared = 0
    for plan in record.plans:
        name = plan_name(plan)
        if name in fates:
            is_dropped = expert in plan.removed[layer]
            assert fates[name] == ("drops it" if is_dropped else "keeps it"), name
            compared += 1
    assert compared >= 3
    said = f"{sum(fate == 'drops it' for fate in fates.values())} drop it."
    assert any(text.endswith(said) for text in texts(test.text))
    mine = next(plan for plan in record.plans if plan_name(plan) == "EAN, on blend of 3 corpora")
    verdict = "**drops** it" if expert in mine.removed[layer] else "**keeps** it"
    assert any(verdict in text for text in texts(test.markdown))


def test_measured_plans_are_made_once_for_all_experts(open_page, monkeypatch):
    made, make = [], planning.plan_experts
    monkeypatch.setattr(planning, "plan_experts", lambda *words: made.append(1) or make(*words))
    for expert in ("3.7", "3.8", "2.1"):
        made.clear()
        test = open_page("expert", expert=expert, sparsity="25%")
    fates = table_with(opened(test, "expert-plans"), "fate")
    assert len(fates) > 16  # more than there are rankings whose statistics stay at hand
    assert not made


def test_its_turn_in_its_layer_and_the_loss_up_to_it(open_page):
    test = open_page("expert", expert="3.18", **BLEND)
    (said,) = (text for text in texts(test.markdown) if "of its layer to go" in text)
    (number,) = map(int, re.findall(r"it is number (\d+) of", said))
    # By hand: the plan that keeps half keeps the 16 that go last.
    record, *_ = LensStore([SHIPPED_STATS]).records()
    mine = next(plan for plan in record.plans if plan_name(plan) == "EAN, on blend of 3 corpora")
    assert (number <= 16) == (18 in mine.removed[3])
    table = table_with(opened(test, "expert-sensitivity"), "before", "without").set_index("corpus")
    assert set(table.index) == set(MEASURED_CORPORA)
    assert (table[["before", "without"]] >= 0).all(axis=None)


@pytest.mark.parametrize("address", [{"expert": "3.18"}, {"layer": "3", "expert": "18"}])
def test_the_address_names_it_in_either_form(open_page, address):
    test = open_page("expert", **address)
    assert any(text.startswith("**Layer 3, expert 18**") for text in texts(test.markdown))
    assert test.query_params["expert"] in ("3.18", ["3.18"])
    assert "layer" not in test.query_params


@pytest.mark.parametrize("address", [{}, {"expert": "9.99"}, {"layer": "<b>", "expert": "x" * 99}])
def test_without_an_expert_the_page_says_how_to_choose_one(open_page, address):
    test = open_page("expert", **address)
    assert any("No expert is chosen" in info.value for info in test.info)


@pytest.mark.parametrize(
    "state",
    [{"model": "bare"}, {"model": "once"}, {"granularity": "neuron"}, {"criterion": "aimer"}],
)
def test_an_expert_of_any_model_and_plan(open_page, state):
    test = open_page("expert", expert="2.1", **state)
    assert any(text.startswith("**Layer 2, expert 1**") for text in texts(test.markdown))


def test_shares_of_corpora_by_hand():
    counts = {"a": [9, 3, 0], "b": [1, 1, 0]}
    stats = {name: stats_of(num_tokens=count) for name, count in counts.items()}
    # 3 of 12 tokens of layer 3, and 1 of 2: as if both corpora were equally long.
    shares = corpus_shares(stats, 3, 1)
    assert shares == pytest.approx({"b": 0.5 / 0.75, "a": 0.25 / 0.75})
    assert list(shares) == ["b", "a"]
    assert corpus_shares(stats, 3, 2) == {"a": 0.0, "b": 0.0}
