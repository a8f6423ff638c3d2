"""Two plans compared, and one plan summed up, by hand."""

import math

import pandas as pd
import pytest

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import load_model_index
from pruning.constraints import Constraints
from pruning.plan import ModelRef, Provenance, PruningPlan, model_ref
from pruning.plan_diff import DIFF_COLUMNS, expert_states, plan_diff
from pruning.plan_summary import SUMMARY_COLUMNS, plan_summary

REF = ModelRef("some/model", "ab" * 32)
LAYERS = (MoELayer(1, 6, 2), MoELayer(3, 5, 2))
A = PruningPlan(REF, {1: (0, 1, 2), 3: (0, 4)})
B = PruningPlan(REF, {1: (1, 2, 5), 3: (0, 4)})


def test_diff_by_hand():
    table = plan_diff(A, B, LAYERS)
    assert tuple(table.columns) == DIFF_COLUMNS
    # Layer 1: 1 and 2 in both, 0 in A, 5 in B, 3 and 4 in neither.
    assert table.to_numpy().tolist() == [
        [1, 2, 1, 1, 2, 2 / 4, 4 / 6],
        [3, 2, 0, 0, 3, 1.0, 1.0],
    ]


def test_states_name_every_expert_once():
    states = expert_states(A, B, LAYERS)
    assert len(states) == 11
    assert states[states["layer"] == 1]["state"].tolist() == [
        "only_a", "both", "both", "neither", "neither", "only_b",
    ]  # fmt: skip


def test_the_other_way_round_swaps_the_two():
    swapped = {"only_a": "only_b", "only_b": "only_a"}
    there, back = plan_diff(A, B, LAYERS), plan_diff(B, A, LAYERS)
    pd.testing.assert_frame_equal(back.rename(columns=swapped)[list(DIFF_COLUMNS)], there)


def test_without_the_model_what_neither_keeps_is_unknown():
    table = plan_diff(A, B)
    assert table["jaccard"].tolist() == [0.5, 1.0]
    assert table["neither"].isna().all()
    assert all(math.isnan(value) for value in table["agreement"])


def test_a_layer_that_is_absent_is_whole():
    part = PruningPlan(REF, {1: (0, 1, 2)})
    table = plan_diff(A, part, LAYERS)
    assert table.loc[1, ["both", "only_a", "only_b", "neither"]].tolist() == [2, 0, 3, 0]
    with pytest.raises(PlanError, match="Only one of the plans names layer 3"):
        plan_diff(A, part)


def test_plans_of_different_models_do_not_compare():
    other = PruningPlan(ModelRef("other", "cd" * 32), A.kept)
    with pytest.raises(PlanError, match=r"different models: some/model .*ab.* and other \(cdcd"):
        plan_diff(A, other, LAYERS)


def test_summary_by_hand(checkpoint):
    model = load_model_index(str(checkpoint("qwen3_moe").path))  # sparse layers 0, 2, 3 of 6
    limits = Constraints(
        protected=frozenset({0}),
        pinned={2: frozenset({1, 2})},
        dropped={3: frozenset({5})},
        fixed={2: 3},
    )
    kept = {2: (1, 2, 4), 3: (0, 1, 2, 3)}
    plan = PruningPlan(model_ref(model), kept, Provenance(constraints=limits.to_dict()))
    table = plan_summary(plan, model)
    assert tuple(table.columns) == SUMMARY_COLUMNS
    assert table.to_numpy().tolist() == [
        [0, 6, 6, 0, 0.0, 0, 0, "protected"],
        [2, 6, 3, 3, 0.5, 2, 0, "fixed"],
        [3, 6, 4, 2, 2 / 6, 0, 1, ""],
    ]
