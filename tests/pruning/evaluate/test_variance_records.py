"""Records of hidden states: what they hold, what they are compared with, and damaged files."""

import json
from dataclasses import replace

import pytest

from analysis.errors import StatsError
from analysis.model import load_model_index
from builders import tiny_checkpoint
from pruning.evaluate.variance_record import (
    VARIANCES,
    VarianceStore,
    new_variance_record,
    variance_overview,
    variance_table,
)
from pruning.plan import PruningPlan, fit_plan, keep_all, model_ref

CORPUS = {"name": "text.jsonl", "digest": "d" * 64}
SETTINGS = {"dtype": "float32", "seed": 42, "tokens": 4096}


@pytest.fixture
def records(tmp_path):
    """Of a model of two decoder layers, one of them dense: unpruned, and half of its experts."""
    tiny_checkpoint(tmp_path / "model", "qwen3_moe")
    model = load_model_index(str(tmp_path / "model"))
    half = {layer.index: (0, 1, 2) for layer in model.layers}
    plans = (keep_all(model), fit_plan(PruningPlan(model_ref(model), half), model))
    numbers = ([1.0, 4.0, 2.0, 8.0], [0.5, 4.0, 1.0, 16.0])
    return [
        new_variance_record(model, plan, CORPUS, SETTINGS).with_results(
            found, 33, {"device": "cpu"}
        )
        for plan, found in zip(plans, numbers, strict=True)
    ]


def test_records_read_back_as_they_were_written(records, tmp_path):
    store = VarianceStore([tmp_path / "stats", tmp_path / "shipped"])
    for record in records:
        store.save(record)
    assert store.records(records[0].model.identity) == sorted(records, key=lambda r: r.record_id)
    assert store.records("another") == []
    empty = replace(records[1], variances=(), num_tokens=0, made={})
    assert store.find(empty) == records[1]
    # Other tokens, other numbers: nothing is known of them.
    model = replace(empty, digest="0" * 64)
    assert store.find(model) is model


def test_the_tables_have_a_row_for_each_layer(records):
    table = variance_table(dict(zip(("full", "half"), records, strict=True)))
    assert table[["model", "layer", "variance"]].values.tolist()[3:6] == [
        ["full", 3, 8.0],
        ["half", 0, 0.5],
        ["half", 1, 4.0],
    ]
    overview = variance_overview(records)
    half = overview[overview["removed"] > 0]
    assert half["full"].tolist() == [1, 4, 2, 8]
    assert set(half["removed"]) == {0.5}
    # What was computed otherwise is not held against this full model.
    other = replace(records[1], settings={**SETTINGS, "dtype": "bfloat16"})
    assert variance_overview([records[0], other]).tail(4)["full"].isna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variances": []}, "a finite number for each layer"),
        ({"variances": [1.0, "2"]}, "a finite number for each layer"),
        ({"plan": {}}, "criterion"),
        ({"corpus": {"name": 1, "digest": "d"}}, "name of its corpus is no text"),
        ({"surplus": 1}, "surplus"),
        ({"schema_version": 9}, "another schema than 1"),
    ],
)
def test_damaged_records_are_named_with_what_makes_them_again(records, change, message):
    raw = json.loads(records[1].to_json()) | change
    with pytest.raises(StatsError, match=message) as error:
        VARIANCES.from_dict(raw, "half.json")
    assert "make it again with `moeprune variance`" in str(error.value)


def test_a_variance_that_is_no_number_is_refused(records):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        records[0].with_results([1.0, float("inf")], 33, {})
