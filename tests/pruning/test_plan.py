"""Plans of experts and neurons: selected, written and read, checked, compared and summed up."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from allocations import ranking_of
from exports import keeping_neurons

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from pruning.plan.budget import count_budget
from pruning.plan.constraints import Constraints
from pruning.plan.plan import Provenance, PruningPlan, model_ref
from pruning.plan.plan_file import load_plan, plan_from_json
from pruning.plan.selection import select_experts
from pruning.plan.tables import (
    DIFF_COLUMNS,
    NEURON_DIFF_COLUMNS,
    NEURON_OUTLINE_COLUMNS,
    NEURON_STATE_COLUMNS,
    NEURON_SUMMARY_COLUMNS,
    SUMMARY_COLUMNS,
    expert_states,
    neuron_diff,
    neuron_outline,
    neuron_states,
    neuron_summary,
    plan_diff,
    plan_outline,
    plan_summary,
)
from pruning.plan.units import expert_units
from pruning.planning.comparing import check_alike
from pruning.planning.neurons_compared import NEURONS_COMPARED_COLUMNS, compare_neurons
from pruning.schedules import uniform

REF = ModelRef("some/model", "ab" * 32)
LAYERS = (MoELayer(1, 6, 2), MoELayer(3, 6, 2))
SALIENCY = np.array([[3, 2.5, 0.7, 1.9, 0.2, 0], [0, 5, 1, 4, 2, 3]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table[table["layer"] != 3], "holds 0 experts of layer 3"),
        (lambda table: table.drop(index=2), "holds 5 experts of layer 1"),
        (lambda table: pd.concat([table, table.tail(1)]), "holds 7 experts of layer 3"),
        (lambda table: table.assign(rank=0), "layer 1 has equal or missing ranks"),
    ],
)
def test_a_ranking_that_does_not_cover_the_layers_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        select_experts(change(ranking_of(LAYERS, SALIENCY)), uniform(LAYERS, "50%"), model=REF)


def test_json_round_trip_keeps_everything_and_is_stable():
    made = Provenance("reap", "applied", ("code",), ("run-1",), "uniform", "0.5", "0.1.0")
    plan = PruningPlan(REF, {3: (0, 4), 1: (2, 3, 5)}, made)
    assert plan_from_json(plan.to_json()) == plan
    assert plan_from_json(plan.to_json()).to_json() == plan.to_json()
    raw = json.loads(plan.to_json())
    assert raw["schema_version"] == 1
    assert raw["model"] == {"name": "some/model", "identity": "ab" * 32}
    assert raw["granularity"] == "expert"
    assert list(raw["kept"].items()) == [("1", [2, 3, 5]), ("3", [0, 4])]
    assert raw["criterion"] == "reap"
    assert raw["sparsity"] == "0.5"


def test_budgets_and_constraints_are_recorded_and_plans_without_them_load():
    limits = Constraints(multiple_of=2, pinned={1: frozenset({3, 1})}).to_dict()
    budget = count_budget(expert_units(LAYERS), 4).to_dict()
    plan = PruningPlan(REF, {1: (1, 3)}, Provenance("reap", budget=budget, constraints=limits))
    raw = json.loads(plan.to_json())
    assert raw["budget"] == {"kind": "count", "asked": "4", "removed": 4}
    assert raw["constraints"] == {"multiple_of": 2, "pinned": {"1": [1, 3]}}
    assert plan_from_json(plan.to_json()) == plan
    for key in ("budget", "constraints", "schedule_parameters"):
        with pytest.raises(PlanError, match=f"'{key}' is not an object"):
            plan_from_json(json.dumps({**raw, key: []}))
        raw.pop(key)
    old = plan_from_json(json.dumps(raw))
    assert (old.digest, dict(old.provenance.constraints)) == (plan.digest, {})


def test_digest_covers_what_decides_and_nothing_else():
    plan = PruningPlan(REF, {1: (2, 3)})
    same = dataclasses.replace(plan, provenance=Provenance(criterion="reap"))
    renamed = dataclasses.replace(plan, model=ModelRef("other name", REF.identity))
    assert plan.digest == same.digest == renamed.digest
    assert plan.digest != dataclasses.replace(plan, kept={1: (2, 4)}).digest
    assert plan.digest != dataclasses.replace(plan, kept={2: (2, 3)}).digest
    assert plan.digest != dataclasses.replace(plan, model=ModelRef("x", "cd" * 32)).digest


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"9": [0, 1]}, r"names layer 9, which has no routed experts in .*; its .* are 0-2"),
        ({"1": [0, 7]}, r"keeps expert 7 in layer 1, which has 7 experts \(0\.\.6\)"),
        ({"1": [0, 3, 3]}, "lists expert 3 of layer 1 twice"),
        ({"1": [4]}, "Layer 1 would keep 1 of 7 experts, but its router picks 2 per token"),
        ({"1": []}, "keeps no expert in layer 1"),
        ({"1": [-1, 2]}, "keeps expert -1 in layer 1"),
        ({"1": ["a", 2]}, "not a list of integers"),
        ({"1": [True, 2]}, "not a list of integers"),
        ({"one": [1, 2]}, "names layer 'one', which is not a decoder index"),
        ([1, 2], "has no 'kept': layer -> ids"),
    ],
)
def test_bad_plans_get_one_clear_line(tmp_path, olmoe, kept, message):
    path = tmp_path / "plan.json"
    raw = json.loads(PruningPlan(model_ref(olmoe), {}).to_json())
    path.write_text(json.dumps({**raw, "kept": kept}))
    with pytest.raises(PlanError, match=message) as error:
        load_plan(path, model=olmoe)
    assert "\n" not in str(error.value)


UNEVEN = (MoELayer(1, 6, 2), MoELayer(3, 5, 2))
A = PruningPlan(REF, {1: (0, 1, 2), 3: (0, 4)})
B = PruningPlan(REF, {1: (1, 2, 5), 3: (0, 4)})


def test_diff_by_hand():
    table = plan_diff(A, B, UNEVEN)
    assert tuple(table.columns) == DIFF_COLUMNS
    # Layer 1: 1 and 2 in both, 0 in A, 5 in B, 3 and 4 in neither.
    assert table.to_numpy().tolist() == [[1, 2, 1, 1, 2, 2 / 4, 4 / 6], [3, 2, 0, 0, 3, 1.0, 1.0]]


def test_states_name_every_expert_once():
    states = expert_states(A, B, UNEVEN)
    assert len(states) == 11
    assert states[states["layer"] == 1]["state"].tolist() == [
        "only_a", "both", "both", "neither", "neither", "only_b",
    ]  # fmt: skip


def test_without_the_model_what_neither_keeps_is_unknown():
    table = plan_diff(A, B)
    assert table["jaccard"].tolist() == [0.5, 1.0]
    assert table["neither"].isna().all()
    assert all(math.isnan(value) for value in table["agreement"])


def test_a_layer_that_is_absent_is_whole():
    part = PruningPlan(REF, {1: (0, 1, 2)})
    table = plan_diff(A, part, UNEVEN)
    assert table.loc[1, ["both", "only_a", "only_b", "neither"]].tolist() == [2, 0, 3, 0]
    with pytest.raises(PlanError, match="Only one of the plans names layer 3"):
        plan_diff(A, part)


def test_plans_of_different_models_do_not_compare():
    other = PruningPlan(ModelRef("other", "cd" * 32), A.kept)
    for compare in (plan_diff, neuron_states):
        with pytest.raises(
            PlanError, match=r"different models: some/model .*ab.* and other \(cdcd"
        ):
            compare(A, other)


def test_every_constraint_is_recorded_unless_it_has_its_default():
    limits = {
        "multiple_of": (4, 4),
        "protected": (frozenset({10, 9}), [9, 10]),
        "pinned": ({10: frozenset({5, 1}), 2: frozenset({3})}, {"2": [3], "10": [1, 5]}),
        "dropped": ({3: frozenset({2, 0})}, {"3": [0, 2]}),
        "fixed": ({12: 7, 4: 0}, {"4": 0, "12": 7}),
        "locked": (frozenset({6, 5}), [5, 6]),
        "floor": (2, 2),
    }
    assert set(limits) == {field.name for field in dataclasses.fields(Constraints)}
    for name, (value, record) in limits.items():
        assert json.dumps(Constraints(**{name: value}).to_dict()) == json.dumps({name: record})
    every = Constraints(**{name: value for name, (value, _) in limits.items()}).to_dict()
    assert json.dumps(every) == json.dumps({name: record for name, (_, record) in limits.items()})
    assert Constraints().to_dict() == {}


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


@pytest.fixture
def pair(olmoe):
    first = keeping_neurons(olmoe, {0: {1: (0, 1, 2), 4: ()}, 2: {6: tuple(range(20))}})
    # Expert 0 of layer 0 goes as a whole; its expert 1 keeps one neuron of A's three and one more.
    second = keeping_neurons(olmoe, {0: {1: (2, 5), 4: ()}}, kept={0: (1, 2, 3, 4, 5, 6)})
    return first, second


def test_neurons_by_hand(olmoe, pair):
    states = neuron_states(*pair, olmoe)
    assert tuple(states.columns) == NEURON_STATE_COLUMNS
    assert len(states) == 21
    by_expert = states.set_index(["layer", "expert"])
    expected = {(0, 0): [0, 24, 0, 0], (0, 1): [1, 2, 1, 20], (0, 2): [24, 0, 0, 0],
                (0, 4): [0, 0, 0, 24], (2, 6): [20, 0, 4, 0]}  # fmt: skip
    assert {key: by_expert.loc[key].tolist() for key in expected} == expected
    table = neuron_diff(*pair, olmoe)
    assert tuple(table.columns) == NEURON_DIFF_COLUMNS
    # Layer 0: experts 0 and 1 differ; both keep 1 + 5 whole less the empty one, so 1 + 4 * 24.
    both = 1 + 4 * 24
    assert table.iloc[0].tolist() == [
        0, 7, 2, both, 26, 1, 44, both / (both + 27), (both + 44) / (7 * 24),
    ]  # fmt: skip
    assert table.iloc[1].tolist() == [1, 7, 0, 168, 0, 0, 0, 1.0, 1.0]
    assert table.iloc[2].tolist() == [2, 7, 1, 164, 0, 4, 0, 164 / 168, 164 / 168]


def test_two_plans_of_neurons_are_compared_neuron_by_neuron(olmoe, pair):
    """Against sets of (layer, expert, neuron), of layers of 7 experts of 24 neurons."""
    every = {(n, e, i) for n in range(3) for e in range(7) for i in range(24)}
    gone = [
        {
            (n, e, i)
            for n, e, i in every
            if e not in plan.kept.get(n, (e,)) or i not in plan.kept_neurons.get(n, {}).get(e, (i,))
        }
        for plan in pair
    ]
    compared = compare_neurons(*pair, olmoe)
    assert tuple(compared.table.columns) == NEURONS_COMPARED_COLUMNS
    assert compared.total == len(every)
    assert compared.agreement == 1 - len(gone[0] ^ gone[1]) / len(every)
    assert compared.jaccard == len(gone[0] & gone[1]) / len(gone[0] | gone[1])
    chance = 0.0
    for layer, row in compared.by_layer.set_index("layer").iterrows():
        a, b = ({place for place in side if place[0] == layer} for side in gone)
        assert row["agreement"] == 1 - len(a ^ b) / 168
        assert (
            math.isnan(row["jaccard"]) if not a | b else row["jaccard"] == len(a & b) / len(a | b)
        )
        chance += (len(a) * len(b) + (168 - len(a)) * (168 - len(b))) / 168
    assert compared.chance_agreement == pytest.approx(chance / len(every))
    for row in compared.table.itertuples():
        a, b = ({place for place in side if place[:2] == (row.layer, row.expert)} for side in gone)
        assert (row.only_a, row.only_b) == (len(b - a), len(a - b))
        assert row.alike == 1 - len(a ^ b) / 24
    differ = compared.disagreements()
    assert [(row.layer, row.expert) for row in differ.itertuples()] == [(0, 0), (2, 6), (0, 1)]


def test_a_plan_of_experts_compares_with_one_of_neurons(olmoe):
    experts = PruningPlan(model_ref(olmoe), {1: (0, 1, 2)})
    neurons = keeping_neurons(olmoe, {1: {2: tuple(range(12)), 3: (7,)}})
    row = neuron_diff(experts, neurons, olmoe).iloc[1]
    # Expert 2 loses 12; experts 3 to 6 are gone in A and keep 1, 24, 24, 24 in B.
    assert row[["differ", "both", "only_a", "only_b", "neither"]].tolist() == [5, 60, 12, 73, 23]


def test_summary_of_neurons_by_hand(olmoe, pair):
    limits = Constraints(protected=frozenset({1}), pinned={0: frozenset({2, 3})})
    plan = keeping_neurons(
        olmoe,
        pair[1].kept_neurons,
        pair[1].kept,
        provenance=Provenance(constraints=limits.to_dict()),
    )
    table = neuron_summary(plan, olmoe)
    assert tuple(table.columns) == NEURON_SUMMARY_COLUMNS
    # Six experts stay: widths 2, 24, 24, 0, 24, 24.
    assert table.iloc[0].tolist() == [
        0, 7, 6, 168, 98, 1 - 98 / 168, 0, 98 / 6, 24, 1, 2, 0, "",
    ]  # fmt: skip
    assert table.iloc[1].tolist() == [1, 7, 7, 168, 168, 0.0, 24, 24.0, 24, 0, 0, 0, "protected"]


def test_plans_of_neurons_are_not_compared_with_plans_of_experts(pair):
    check_alike("neuron", pair[1])
    words = (
        f"removes whole experts, and the second, {pair[1].digest[:8]}, neurons; two plans of one"
    )
    with pytest.raises(PlanError, match=words):
        check_alike("expert", pair[1])


def test_what_the_plans_alone_can_say(olmoe, pair):
    named = keeping_neurons(olmoe, {0: {1: (1, 2), 4: (3,)}})
    other = keeping_neurons(olmoe, {0: {1: (2, 3, 4), 4: (3,)}})
    table = neuron_diff(named, other)
    row = table.iloc[0]
    assert row[["experts", "differ", "both", "only_a", "only_b"]].tolist() == [2, 1, 2, 1, 2]
    assert row["jaccard"] == 2 / 5
    assert table["neither"].isna().all()
    assert math.isnan(table["agreement"].iloc[0])
    with pytest.raises(PlanError, match=r"cuts expert 6 of layer 2; the other keeps it whole"):
        neuron_diff(*pair)
    # Removed as a whole, an expert keeps no neuron, which needs no model.
    gone = keeping_neurons(olmoe, {}, kept={0: (0, 2, 3, 5, 6)})
    assert neuron_diff(named, gone)["only_a"].tolist() == [3]


def test_two_plans_without_a_neuron_are_alike(olmoe):
    nothing = keeping_neurons(olmoe, {1: dict.fromkeys(range(7), ())})
    assert neuron_diff(nothing, nothing, olmoe)["jaccard"].tolist() == [1.0, 1.0, 1.0]


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


def test_saving_where_it_cannot_be_is_one_line(tmp_path):
    with pytest.raises(PlanError, match="cannot be written"):
        PruningPlan(REF, {}).save(tmp_path / "absent" / "plan.json")
