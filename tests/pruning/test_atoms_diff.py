"""Two plans of neurons against each other, and one layer by layer: all by hand."""

import math

import pandas as pd
import pytest

from analysis.errors import PlanError
from analysis.model import load_model_index
from pruning.constraints import Constraints
from pruning.plan import ModelRef, Provenance, PruningPlan, model_ref
from pruning.plan_diff import NEURON_DIFF_COLUMNS, NEURON_STATE_COLUMNS, neuron_diff, neuron_states
from pruning.plan_summary import (
    NEURON_OUTLINE_COLUMNS,
    NEURON_SUMMARY_COLUMNS,
    neuron_outline,
    neuron_summary,
    plan_outline,
)


@pytest.fixture
def model(checkpoint):
    # Layers 0, 1, 2 of 7 experts of 24 neurons, top-2.
    return load_model_index(str(checkpoint("olmoe").path))


def atomic(model, atoms, kept=None, **rest):
    return PruningPlan(model_ref(model), kept or {}, granularity="atomic", kept_atoms=atoms, **rest)


@pytest.fixture
def pair(model):
    first = atomic(model, {0: {1: (0, 1, 2), 4: ()}, 2: {6: tuple(range(20))}})
    # Expert 0 of layer 0 goes as a whole; its expert 1 keeps one neuron of A's three and one more.
    second = atomic(model, {0: {1: (2, 5), 4: ()}}, kept={0: (1, 2, 3, 4, 5, 6)})
    return first, second


def test_neurons_by_hand(model, pair):
    states = neuron_states(*pair, model)
    assert tuple(states.columns) == NEURON_STATE_COLUMNS
    assert len(states) == 21
    by_expert = states.set_index(["layer", "expert"])
    expected = {(0, 0): [0, 24, 0, 0], (0, 1): [1, 2, 1, 20], (0, 2): [24, 0, 0, 0],
                (0, 4): [0, 0, 0, 24], (2, 6): [20, 0, 4, 0]}  # fmt: skip
    assert {key: by_expert.loc[key].tolist() for key in expected} == expected
    table = neuron_diff(*pair, model)
    assert tuple(table.columns) == NEURON_DIFF_COLUMNS
    # Layer 0: experts 0 and 1 differ; both keep 1 + 5 whole less the empty one, so 1 + 4 * 24.
    both = 1 + 4 * 24
    assert table.iloc[0].tolist() == [
        0, 7, 2, both, 26, 1, 44, both / (both + 27), (both + 44) / (7 * 24),
    ]  # fmt: skip
    assert table.iloc[1].tolist() == [1, 7, 0, 168, 0, 0, 0, 1.0, 1.0]
    assert table.iloc[2].tolist() == [2, 7, 1, 164, 0, 4, 0, 164 / 168, 164 / 168]


def test_the_other_way_round_swaps_the_two(model, pair):
    first, second = pair
    back = neuron_diff(second, first, model).rename(
        columns={"only_a": "only_b", "only_b": "only_a"}
    )
    pd.testing.assert_frame_equal(
        back[list(NEURON_DIFF_COLUMNS)], neuron_diff(first, second, model)
    )


def test_a_plan_of_experts_compares_with_one_of_neurons(model):
    experts = PruningPlan(model_ref(model), {1: (0, 1, 2)})
    neurons = atomic(model, {1: {2: tuple(range(12)), 3: (7,)}})
    row = neuron_diff(experts, neurons, model).iloc[1]
    # Expert 2 loses 12; experts 3 to 6 are gone in A and keep 1, 24, 24, 24 in B.
    assert row[["differ", "both", "only_a", "only_b", "neither"]].tolist() == [5, 60, 12, 73, 23]


def test_what_the_plans_alone_can_say(model, pair):
    named = atomic(model, {0: {1: (1, 2), 4: (3,)}})
    other = atomic(model, {0: {1: (2, 3, 4), 4: (3,)}})
    table = neuron_diff(named, other)
    row = table.iloc[0]
    assert row[["experts", "differ", "both", "only_a", "only_b"]].tolist() == [2, 1, 2, 1, 2]
    assert row["jaccard"] == 2 / 5
    assert table["neither"].isna().all()
    assert math.isnan(table["agreement"].iloc[0])
    with pytest.raises(PlanError, match=r"cuts expert 6 of layer 2; the other keeps it whole"):
        neuron_diff(*pair)
    # Removed as a whole, an expert keeps no neuron, which needs no model.
    gone = atomic(model, {}, kept={0: (0, 2, 3, 5, 6)})
    assert neuron_diff(named, gone)["only_a"].tolist() == [3]


def test_two_plans_without_a_neuron_are_alike(model):
    nothing = atomic(model, {1: dict.fromkeys(range(7), ())})
    assert neuron_diff(nothing, nothing, model)["jaccard"].tolist() == [1.0, 1.0, 1.0]


def test_plans_of_different_models_do_not_compare(model, pair):
    other = PruningPlan(ModelRef("other", "cd" * 32), {}, granularity="atomic")
    with pytest.raises(PlanError, match="different models"):
        neuron_states(pair[0], other)


def test_summary_by_hand(model, pair):
    limits = Constraints(protected=frozenset({1}), pinned={0: frozenset({2, 3})})
    plan = atomic(
        model, pair[1].kept_atoms, pair[1].kept, provenance=Provenance(constraints=limits.to_dict())
    )
    table = neuron_summary(plan, model)
    assert tuple(table.columns) == NEURON_SUMMARY_COLUMNS
    # Six experts stay: widths 2, 24, 24, 0, 24, 24.
    assert table.iloc[0].tolist() == [
        0, 7, 6, 168, 98, 1 - 98 / 168, 0, 98 / 6, 24, 1, 2, 0, "",
    ]  # fmt: skip
    assert table.iloc[1].tolist() == [1, 7, 7, 168, 168, 0.0, 24, 24.0, 24, 0, 0, 0, "protected"]


def test_outline_without_the_model(pair):
    first, second = pair
    table = neuron_outline(first)
    assert tuple(table.columns) == NEURON_OUTLINE_COLUMNS
    assert table["kept"].isna().all()
    assert table[["cut", "least", "mean", "most", "empty"]].to_numpy().tolist() == [
        [2, 0, 1.5, 3, 1],
        [1, 20, 20.0, 20, 0],
    ]
    assert neuron_outline(second)["kept"].tolist() == [6]
    assert plan_outline(second).to_numpy().tolist() == [[0, 6]]
