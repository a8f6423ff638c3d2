"""Runs with the group `dense`: a row for each sample, however they are fed; resumed, merged."""

import numpy as np
import pandas as pd
import pytest
from calibrations import LENGTHS, assert_same_numbers, describe, make_sequences, make_settings

from analysis.calibration.loading import Placement
from analysis.calibration.run import calibrate
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.merging import merge_runs
from analysis.samples import load_sample_stats
from analysis.store import SAMPLES, StatsStore, read_table

GROUPS = ("routed", "dense")


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    return describe(tmp_path_factory.mktemp("tiny"), "qwen3_moe")


def start(described, stats, sequences=None, **settings):
    chosen = make_settings(**{"dtype": "float64", "groups": GROUPS, **settings})
    return calibrate(described, sequences or make_sequences(), chosen, StatsStore(stats))


@pytest.fixture(scope="module")
def run(described, tmp_path_factory):
    return drain(start(described, tmp_path_factory.mktemp("stats")))


def test_a_row_for_each_sample_layer_and_expert(run):
    table = read_table(run, SAMPLES)
    # Layers 0, 2, 3 of 6 experts.
    assert len(table) == len(LENGTHS) * 3 * 6
    tokens = table.groupby("sample")["num_tokens"].unique().map(list).tolist()
    assert tokens == [[length] for length in LENGTHS]
    # Probabilities of a token sum to 1 over the experts of a layer.
    sums = table.groupby(["sample", "layer"])["probability_sum"].sum().to_numpy().reshape(-1, 3)
    assert np.allclose(sums, np.array(LENGTHS)[:, None], rtol=1e-12)
    assert (table[["activation_sum", "loss_sum"]] > 0).all(axis=None)


def test_routed_sums_are_the_same_without(described, run, tmp_path):
    alone = drain(start(described, tmp_path, groups=("routed",)))
    for name in ("experts.parquet", "vectors.parquet", "shards.parquet"):
        pd.testing.assert_frame_equal(
            read_table(alone, name), read_table(run, name), check_exact=True
        )
    with pytest.raises(StatsError, match="calibrate with --groups routed,dense"):
        load_sample_stats(alone)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_batches_do_not_matter(described, run, tmp_path, batch_size):
    other = load_sample_stats(drain(start(described, tmp_path, batch_size=batch_size)))
    stats = load_sample_stats(run)
    for name in ("activation", "probability", "loss"):
        assert np.allclose(getattr(other, name), getattr(stats, name), rtol=1e-12)


def test_a_stopped_run_goes_on(described, run, tmp_path):
    task = start(described, tmp_path)
    for progress in task:
        if progress.done and progress.phase == "calibrating":
            break
    task.close()
    assert_same_numbers(drain(start(described, tmp_path)), run)


def test_layers_one_at_a_time(described, run, tmp_path):
    streamed = drain(start(described, tmp_path, placement=Placement(stream_layers=True)))
    assert_same_numbers(streamed, run)


def test_merged_runs_have_the_samples_of_all(described, run, tmp_path):
    other = drain(start(described, tmp_path, make_sequences((4, 8), seed=9, corpus="more.jsonl")))
    merged = load_sample_stats(merge_runs([run, other], tmp_path))
    parts = [load_sample_stats(each) for each in (run, other)]
    assert merged.num_tokens.tolist() == [*LENGTHS, 4, 8]
    for name in ("activation", "probability", "loss"):
        joined = np.vstack([getattr(part, name) for part in parts])
        assert np.array_equal(getattr(merged, name), joined)
