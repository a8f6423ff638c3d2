"""Plans: selected from rankings, written and read, checked against a model."""

import dataclasses
import itertools
import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import describe_model, load_model_index
from pruning.allocation import Allocation
from pruning.plan import (
    ModelRef,
    Provenance,
    PruningPlan,
    fit_plan,
    keep_all,
    load_plan,
    model_ref,
    plan_from_json,
    select_experts,
)
from pruning.schedules import uniform

REF = ModelRef("some/model", "ab" * 32)
LAYERS = (MoELayer(1, 6, 2), MoELayer(3, 6, 2))
SALIENCY = {1: [3, 2.5, 0.7, 1.9, 0.2, 0], 3: [0, 5, 1, 4, 2, 3]}


def make_ranking(saliency=SALIENCY):
    rows = []
    for layer, values in saliency.items():
        order = sorted(range(len(values)), key=lambda expert: (-values[expert], expert))
        for expert, value in enumerate(values):
            rows.append((layer, expert, value, value, order.index(expert), 10))
    columns = ["layer", "expert", "score", "saliency", "rank", "num_tokens"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture
def olmoe(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


@pytest.mark.parametrize("keep", range(2, 7))
def test_selection_is_the_best_subset_of_its_size(keep):
    plan = select_experts(make_ranking(), Allocation(LAYERS, (keep, keep)), model=REF)
    for layer, values in SALIENCY.items():
        subsets = itertools.combinations(range(6), keep)
        best = max(subsets, key=lambda subset: sum(values[expert] for expert in subset))
        assert plan.kept[layer] == best


@given(seed=st.integers(0, 1000))
def test_selection_does_not_depend_on_the_order_of_rows(seed):
    ranking = make_ranking()
    shuffled = ranking.sample(frac=1, random_state=seed)
    allocation = uniform(LAYERS, "50%")
    assert select_experts(ranking, allocation, model=REF) == select_experts(
        shuffled, allocation, model=REF
    )


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
        select_experts(change(make_ranking()), uniform(LAYERS, "50%"), model=REF)


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


def test_an_empty_plan_is_valid_json():
    assert plan_from_json(PruningPlan(REF, {}).to_json()).kept == {}


def test_digest_covers_what_decides_and_nothing_else():
    plan = PruningPlan(REF, {1: (2, 3)})
    same = dataclasses.replace(plan, provenance=Provenance(criterion="reap"))
    renamed = dataclasses.replace(plan, model=ModelRef("other name", REF.identity))
    assert plan.digest == same.digest == renamed.digest
    assert plan.digest != dataclasses.replace(plan, kept={1: (2, 4)}).digest
    assert plan.digest != dataclasses.replace(plan, kept={2: (2, 3)}).digest
    assert plan.digest != dataclasses.replace(plan, model=ModelRef("x", "cd" * 32)).digest


def test_save_and_load(tmp_path, olmoe):
    path = tmp_path / "plan.json"
    plan = select_experts(
        make_ranking({layer.index: list(range(7)) for layer in olmoe.layers}),
        uniform(olmoe.layers, "50%"),
        model=model_ref(olmoe),
    )
    plan.save(path)
    assert load_plan(path, model=olmoe) == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_saving_where_it_cannot_be_is_one_line(tmp_path):
    with pytest.raises(PlanError, match="cannot be written"):
        PruningPlan(REF, {}).save(tmp_path / "absent" / "plan.json")


def test_keep_all_names_every_expert(olmoe):
    assert keep_all(olmoe).kept == {index: tuple(range(7)) for index in (0, 1, 2)}


def test_layers_that_are_absent_stay_whole(olmoe):
    plan = fit_plan(PruningPlan(model_ref(olmoe), {2: (1, 5)}), olmoe)
    assert plan.kept == {0: tuple(range(7)), 1: tuple(range(7)), 2: (1, 5)}


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"9": [0, 1]}, r"names layer 9, which has no routed experts in .*; its .* are 0\.\.2"),
        ({"1": [0, 7]}, r"keeps expert 7 in layer 1, which has 7 experts \(0\.\.6\)"),
        ({"1": [0, 3, 3]}, "lists expert 3 of layer 1 twice"),
        ({"1": [4]}, "Layer 1 would keep 1 of 7 experts, but its router picks 2 per token"),
        ({"1": []}, "keeps no expert in layer 1"),
        ({"1": [-1, 2]}, "keeps expert -1 in layer 1"),
        ({"1": ["a", 2]}, "not a list of integers"),
        ({"1": [True, 2]}, "not a list of integers"),
        ({"one": [1, 2]}, "names layer 'one', which is not a decoder index"),
        ([1, 2], "malformed"),
    ],
)
def test_bad_plans_get_one_clear_line(tmp_path, olmoe, kept, message):
    path = tmp_path / "plan.json"
    raw = json.loads(PruningPlan(model_ref(olmoe), {}).to_json())
    path.write_text(json.dumps({**raw, "kept": kept}))
    with pytest.raises(PlanError, match=message) as error:
        load_plan(path, model=olmoe)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 2}', "schema_version 2, but this version reads 1"),
        ('{"schema_version": 1, "kept": {}}', "malformed at 'model'"),
        ('{"schema_version": 1, "model": {}}', "has no 'kept'"),
        (
            '{"schema_version": 1, "model": {"name": "m", "identity": "i"}, '
            '"granularity": "row", "kept": {}}',
            "'row'; this version handles 'expert' and 'atomic'",
        ),
        (
            '{"schema_version": 1, "model": {"name": "m", "identity": "i"}, "kept": {}, '
            '"corpora": "code"}',
            "'corpora' is not a list",
        ),
    ],
)
def test_bad_files_get_one_clear_line(text, message):
    with pytest.raises(PlanError, match=message) as error:
        plan_from_json(text)
    assert "\n" not in str(error.value)


def test_a_missing_plan_is_one_line(tmp_path):
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        load_plan(tmp_path / "absent.json")


def test_a_plan_of_another_model_says_so(olmoe, checkpoint):
    other = load_model_index(str(checkpoint("olmoe", seed=5).path))
    with pytest.raises(PlanError, match=r"was made for .*seed=5.*, not for olmoe"):
        fit_plan(keep_all(other), olmoe)


def test_a_copy_under_another_name_is_the_same_model(olmoe):
    copy = describe_model(olmoe.checkpoint, name="renamed")
    assert fit_plan(keep_all(copy), olmoe).kept == keep_all(olmoe).kept
