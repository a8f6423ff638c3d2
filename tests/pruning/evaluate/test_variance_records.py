"""Records of hidden states: what they hold, and what they are compared with."""

import pytest

from analysis.errors import StatsError
from analysis.model import load_model_index
from builders import tiny_checkpoint
from pruning.evaluate.variance_record import (
    VarianceRecord,
    VarianceStore,
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
        VarianceRecord.new(model, plan, CORPUS, SETTINGS).with_results(found, 33, {"device": "cpu"})
        for plan, found in zip(plans, numbers, strict=True)
    ]


def test_records_read_back_as_they_were_written(records, tmp_path):
    store = VarianceStore([tmp_path / "stats", tmp_path / "shipped"])
    for record in records:
        store.save(record)
    assert store.records(records[0].model.identity) == sorted(records, key=lambda r: r.record_id)
    empty = records[1].model_copy(update={"variances": (), "num_tokens": 0, "made": {}})
    assert store.find(empty) == records[1]


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
    other = records[1].model_copy(update={"settings": {**SETTINGS, "dtype": "bfloat16"}})
    assert variance_overview([records[0], other]).tail(4)["full"].isna().all()


def test_a_variance_that_is_no_number_is_refused(records):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        records[0].with_results([1.0, float("inf")], 33, {})
