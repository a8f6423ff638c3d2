"""The papers' tables as they ship, ranks, and the front of what nobody beats."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import UserError
from analysis.ranking.leaderboard import (
    ability_weights,
    average_rank,
    pareto_front,
    ranks,
    score_table,
    weighted_average,
    winners,
)
from analysis.ranking.published import PAPERS, published_table

# Models x rows x columns, counted on the page: OLMoE and DeepSeek have one ratio, the others two.
ROWS = {
    "aimer-text": 11,
    "unified-table-1": 4 * 8 * 7,
    "unified-table-2": 2 * (10 + 19) * 4,
    "unified-table-3": 4,
    "unified-table-5": (8 + 8 + 15 + 15) * 16,
    "unified-ranks": 4 * 7 + 2 * (9 + 18),
    "evoesap-table-1": (9 + 17) * 8,
    "evoesap-table-2": 17 * 8,
    "evoesap-table-3": 3,
    "evoesap-table-4": 2 * 3,
    "evoesap-table-5": 9 * 8,
    "evoesap-table-6": 9 * 8,
    "evoesap-table-7": (9 + 17 + 17) * 7,
    "evoesap-table-9": (9 + 17 + 17) * 9,
    "heapr-table-1": (10 + 1 + 9 + 7 + 4) * 10,
    "heapr-table-2": 10 * 8,
    "heapr-table-3": 4 * 8,
    "heapr-table-5": 6,
    "pathfinder-table-2": 6 * 7,
    "pathfinder-table-3": 11 * 7,
    "pathfinder-table-4": 4 * 7,
    "pathfinder-table-5": 3 * 7,
}
QWEN, ERNIE = "Qwen3-30B-A3B-Instruct-2507", "ERNIE-4.5-21B-A3B-PT"
OLMOE, DEEPSEEK = "OLMoE-1B-7B-0125-Instruct", "DeepSeek-V2-Lite-Chat"
# Table; conditions; score: read off the papers a second time.
SPOTS = f"""
unified-table-1; model={QWEN} criterion=man benchmark=Eval+; 0.868
unified-table-1; model={DEEPSEEK} criterion=msan benchmark=Average; 0.237
unified-table-1; model={OLMOE} criterion=full benchmark=MC~average; 0.653
unified-table-2; model={QWEN} sparsity=0.5 criterion=gate-ean benchmark=LiveCodeBench; 0.352
unified-table-2; model={DEEPSEEK} criterion=reap benchmark=MATH-500; 0.218
unified-table-5; model={QWEN} sparsity=0.5 criterion=msan benchmark=WinoGrande; 0.672
unified-table-5; model={ERNIE} criterion=full benchmark=BoolQ; 0.872
evoesap-table-1; model={ERNIE} sparsity=0.5 criterion=reap schedule=evoesap benchmark=GSM8K; 0.718
evoesap-table-2; sparsity=0.25 criterion=frequency schedule=evoesap benchmark=LiveCodeBench; 0.396
evoesap-table-6; criterion=reap schedule=evoesap benchmark=Math~average; 0.716
evoesap-table-7; model={OLMOE} criterion=ean schedule=uniform benchmark=MBPP+; 0.307
evoesap-table-9; model={QWEN} sparsity=0.5 criterion=seer schedule=evoesap benchmark=RTE; 0.567
evoesap-table-5; fitness=NLL benchmark=GSM8K; 0.619
heapr-table-1; model=Qwen3-30B-A3B sparsity=0.5 criterion=heapr benchmark=PIQA; 0.67
heapr-table-2; model=DeepSeekMoE-16B-Base sparsity=0.2 criterion=camera-p benchmark=Average; 0.5952
heapr-table-3; sparsity=0.4 granularity=neuron benchmark=HellaSwag; 0.5229
pathfinder-table-2; model=Mixtral-8x7B-Instruct criterion=random benchmark=GSM8K; 0.019
pathfinder-table-5; expert_importance=yes transition_intensity=no benchmark=MMLU; 0.5877
""".strip().splitlines()


def where(table: pd.DataFrame, conditions: dict[str, object]) -> pd.DataFrame:
    for column, value in conditions.items():
        table = table[table[column] == value]
    return table


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_row_is_there_once(name):
    table = published_table(name)
    assert len(table) == ROWS[name]
    assert not table.duplicated(
        [c for c in table.columns if c not in ("score", "perplexity")]
    ).any()
    assert set(table["paper"]) <= set(PAPERS)
    if "score" in table:
        assert table["score"].dropna().between(0, 1).all()


@pytest.mark.parametrize("spot", SPOTS)
def test_values_on_the_page(spot):
    name, conditions, value = spot.split("; ")
    pairs = dict(word.replace("~", " ").split("=") for word in conditions.split())
    wanted = {key: float(word) if key == "sparsity" else word for key, word in pairs.items()}
    (score,) = where(published_table(name), wanted)["score"]
    assert score == float(value)


def test_parts_average_to_the_printed_averages():
    """Eval+ is the mean of four (EvoESAP, Table 7), MC average of eight (Table 9), to rounding."""
    for name, whole, parts in (
        ("evoesap-table-7", "Eval+", ["HumanEval", "HumanEval+", "MBPP", "MBPP+"]),
        (
            "evoesap-table-9",
            "MC average",
            ["MMLU", "ARC-C", "ARC-E", "HellaSwag", "WinoGrande", "BoolQ", "OpenBookQA", "RTE"],
        ),
    ):
        wide = published_table(name).pivot_table(
            index=["model", "sparsity", "criterion", "schedule"],
            columns="benchmark",
            values="score",
        )
        assert (wide[parts].mean(axis=1) - wide[whole]).abs().max() <= 0.0011


@pytest.mark.parametrize("model", [OLMOE, DEEPSEEK, ERNIE, QWEN])
def test_average_rank_is_the_papers(model):
    """The unified paper ranks over the six columns of Table 1 that it shows."""
    table = where(published_table("unified-table-1"), {"model": model})
    table = table[(table["criterion"] != "full") & ~table["benchmark"].isin(["Average"])]
    computed = average_rank(score_table(table))
    printed = where(published_table("unified-ranks"), {"model": model, "table": 1})
    for _, row in printed.iterrows():
        assert computed[row["criterion"]] == pytest.approx(row["average_rank"], abs=0.006)


def results(**columns: dict[str, float]) -> pd.DataFrame:
    rows = [(name, bench, s) for name, own in columns.items() for bench, s in own.items()]
    return pd.DataFrame(rows, columns=["criterion", "benchmark", "score"])


def test_ranks_by_hand():
    scores = score_table(results(a={"x": 0.5, "y": 0.1}, b={"x": 0.5, "y": 0.3}))
    # On x both share (1 + 2) / 2; on y b is first.
    assert ranks(scores).loc["a"].tolist() == [1.5, 2.0]
    assert average_rank(scores).to_dict() == {"a": 1.75, "b": 1.25}


def test_own_average_by_hand():
    scores = score_table(results(a={"x": 0.4, "y": 0.1}, b={"x": 0.2, "y": 0.4}))
    average = weighted_average(scores, {"x": 3})
    # (3 * 0.4 + 0.1) / 4 and (3 * 0.2 + 0.4) / 4
    assert average.to_dict() == pytest.approx({"a": 0.325, "b": 0.25})
    with pytest.raises(UserError, match="greater than 0"):
        weighted_average(scores, {"x": 0, "y": 0})


def test_two_scores_for_one_cell_are_refused():
    twice = pd.concat([results(a={"x": 0.4}), results(a={"x": 0.5})])
    with pytest.raises(UserError, match="a has two scores on x"):
        score_table(twice)


# Few values, so that many candidates are equal in one number or in both.
numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")])


def beats(one, other, sign):
    """At least as good in both, and better in one."""
    (cost, worth), (other_cost, other_worth) = one, other
    gain, other_gain = sign * worth, sign * other_worth
    no_worse = cost <= other_cost and gain >= other_gain
    return no_worse and (cost < other_cost or gain > other_gain)


@given(st.lists(st.tuples(numbers, numbers), max_size=12), st.booleans())
def test_the_front_is_what_nobody_beats(candidates, higher_is_better):
    sign = 1 if higher_is_better else -1
    found = pareto_front(
        [cost for cost, _ in candidates],
        [worth for _, worth in candidates],
        higher_is_better=higher_is_better,
    )
    # A comparison with NaN is false, so what has no number beats nobody and is beaten by nobody.
    expected = [
        not np.isnan(candidate).any()
        and not any(beats(other, candidate, sign) for other in candidates)
        for candidate in candidates
    ]
    assert found.tolist() == expected


def test_winners_by_hand():
    scores = score_table(
        results(
            a={"x": 0.5, "y": 0.1, "z": 0.0},
            b={"x": 0.5, "y": 0.3, "z": 0.0},
            c={"x": 0.25, "y": 0.2, "z": 0.0},
        )
    )
    table = winners(scores).set_index("benchmark")
    assert table.loc["x", ["winner", "margin", "tied"]].tolist() == ["a", 0.25, 2]
    assert table.loc["y", "winner"] == "b"
    assert table.loc["y", "margin"] == pytest.approx(0.1)
    assert table.loc["z", ["winner", "tied"]].tolist() == ["", 0]
    assert table["candidates"].tolist() == [3, 3, 3]


def test_a_candidate_without_a_rival_neither_wins_nor_has_a_rank():
    scores = score_table(results(a={"x": 0.5, "y": 0.1}, b={"x": 0.4}))
    assert winners(scores)["winner"].tolist() == ["a", ""]
    assert winners(scores)["candidates"].tolist() == [2, 1]
    # Of x alone: a's rank 1 of 1 on y would say nothing.
    assert average_rank(scores).to_dict() == {"a": 1.0, "b": 2.0}
    assert average_rank(scores.loc[["a"]]).isna().all()


def test_abilities_share_their_weight():
    abilities = {"x": "code", "y": "code", "z": "math"}
    weights = ability_weights(["x", "y", "z", "mean"], abilities, {"code": 3.0})
    # 3 over two benchmarks of code, 1 over one of math, nothing for what is of neither.
    assert weights == {"x": 1.5, "y": 1.5, "z": 1.0, "mean": 0.0}
