"""Statistics of packed documents are those of the documents alone; what does not count is out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibrations import LENGTHS, calibrated, labelled, table_of

from analysis.stats.columns import LARGEST
from analysis.stats.manifest import COACTIVATION, EXPERTS, NEURONS, ROUTER, SAMPLES
from analysis.stats.reading import read_table

# Group -> its files, and how far numbers may be apart: routers round to float32 in any model, and
# what goes backward meets that again.
FILES = {
    **{"routed": {EXPERTS: 1e-10}, "damage": {EXPERTS: 1e-6}, "gradient": {NEURONS: 1e-5}},
    **{"router": {ROUTER: 1e-6, COACTIVATION: 0}, "dense": {SAMPLES: 1e-10}},
}


def run_of(tiny, sequences, stats, batch_size=2, group="routed"):
    settings = {"seq_len": 12, "batch_size": batch_size, "dtype": "float64"}
    return calibrated(tiny, stats, sequences, **settings, groups=tuple({"routed": 1, group: 1}))


def assert_close(table, other, tolerance=1e-10):
    pd.testing.assert_frame_equal(table, other, rtol=tolerance, atol=0)


@pytest.mark.parametrize("count", ["all", "response"])
@pytest.mark.parametrize("group", FILES)
def test_batches_and_packing_change_nothing(tiny, tmp_path, group, count):
    def tables(packing, batch_size):
        stats = tmp_path / f"{packing} {batch_size}"
        run = run_of(tiny, labelled(packing, count), stats, batch_size, group)
        return {file: read_table(run, file) for file in FILES[group]}

    packed = labelled("pack", count)
    # Rows of unequal lengths, so that the batches of packed rows hold padding too.
    assert len(packed.rows) < len(LENGTHS)
    assert packed.num_padded(2) > 0
    alone = tables("pad", 1)
    same = [tables("pad", 5), tables("pad", 64)]
    others = []
    if group != "dense":  # whose samples are rows
        same.append(tables("pack", 2))
        others.append(tables("concatenate", 2))
    for file, tolerance in FILES[group].items():
        for found in same:
            assert_close(found[file], alone[file], tolerance)
        for found in others:
            with pytest.raises(AssertionError):
                assert_close(found[file], alone[file], tolerance)


@pytest.mark.parametrize("packing", ["pad", "pack"])
def test_answers_and_the_rest_add_up_to_all(tiny, tmp_path, packing):
    answers = labelled(packing, "response")
    rest = replace(answers, counted=tuple(~row for row in answers.counted))
    runs = [
        run_of(tiny, part, tmp_path / str(number))
        for number, part in enumerate((answers, rest, replace(answers, counted=None)))
    ]
    some, others, whole = (table_of(run).drop(columns="vector_sum_sq") for run in runs)
    added = some + others
    added[["layer", "expert"]] = some[["layer", "expert"]]
    added[LARGEST] = np.maximum(some[LARGEST], others[LARGEST])
    assert_close(added, whole)
    per_layer = some.groupby("layer")["num_tokens"].sum().unique().tolist()
    assert per_layer == [answers.num_counted * tiny.layers[0].top_k]
    (corpus,) = runs[0].manifest.corpora
    assert (corpus.num_counted, corpus.num_tokens) == (answers.num_counted, sum(LENGTHS))
