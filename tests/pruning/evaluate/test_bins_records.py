"""Records of bins: what they hold, and what makes them another."""

import json
import math

import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.model import load_model_index
from builders import tiny_checkpoint
from pruning.evaluate.bins import Bin, Binning
from pruning.evaluate.bins_record import BinsStore, RankedBy, bins_overview, new_bins_record
from pruning.plan import keep_all

CORPUS = {"name": "text.jsonl", "digest": "c" * 64, "seed": 1}
SETTINGS = {"dtype": "float32", "seed": 42}
RANKED = RankedBy("reap", "applied", ("text",), ("run-1",), "expert", Binning(3))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("bins") / "olmoe"
    tiny_checkpoint(path, "olmoe")
    return load_model_index(str(path))


def new(model, ranked=RANKED, corpus=CORPUS, settings=SETTINGS):
    bins = [Bin(number, keep_all(model), 7, float(number), math.nan) for number in range(3)]
    return new_bins_record(model, ranked, bins, corpus, settings)


def table(changes=(0.1, 0.3, 0.2)):
    return pd.DataFrame(
        {
            "bin": range(3),
            "removed": 7,
            "saliency": [0.0, 1.0, 2.0],
            "share": math.nan,
            "loss_change": changes,
            "low": math.nan,
            "high": [0.2, 0.4, 0.3],
            "pooled": changes,
        }
    )


def test_what_is_undefined_survives_the_file(model, tmp_path):
    store = BinsStore([tmp_path])
    made = new(model).with_results(table(), (2.5, 4, 60), {"device": "cpu"})
    assert not new(model).is_measured
    raw = json.loads(store.save(made).read_text())
    assert raw["rows"][0]["share"] is None  # no NaN in JSON
    (found,) = store.records(model.identity)
    pd.testing.assert_frame_equal(found.table, table())
    assert (found.ranked, found.full_loss, found.num_tokens) == (RANKED, 2.5, 60)
    assert store.find(new(model)).is_measured
    assert store.records("f" * 64) == []


def test_what_changes_the_numbers_makes_another_record(model):
    known = new(model).digest
    others = [
        new(model, RankedBy("man", "applied", ("text",), (), "expert", Binning(3))),
        new(model, RankedBy("reap", "applied", ("text",), (), "expert", Binning(3, "global"))),
        new(model, RankedBy("reap", "applied", ("text",), (), "expert", Binning(3, order="index"))),
        new(model, corpus=CORPUS | {"digest": "d" * 64}),
        new(model, settings=SETTINGS | {"dtype": "bfloat16"}),
    ]
    assert len({known, *(each.digest for each in others)}) == 6
    # Made again with more groups a run has another id and the same numbers.
    again = RankedBy("reap", "applied", ("text",), ("run-2",), "expert", Binning(3))
    assert new(model, again).digest == known


def test_overview_by_hand(model):
    made = new(model).with_results(table(), (2.5, 4, 60), {})
    (row,) = bins_overview([made]).to_dict("records")
    assert (row["bins"], row["removed"], row["first"], row["last"]) == (3, 21, 0.1, 0.2)
    # Ranks of the changes 1, 3, 2 against 1, 2, 3: 1 - 6 (0 + 1 + 1) / (3 * 8).
    assert row["agreement"] == pytest.approx(0.5)


def test_a_loss_that_is_no_number_is_refused(model):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        new(model).with_results(table((0.1, math.inf, 0.2)), (2.5, 4, 60), {})
