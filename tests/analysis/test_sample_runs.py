"""Runs with the group `dense`: a row for each sample, however they are fed; resumed, merged."""

import numpy as np
import pytest
import safetensors
import safetensors.torch
from calibrations import LENGTHS, assert_same_numbers, calibration, make_sequences, watched

from analysis.calibration.loading import Placement
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.stats.grid import Grid
from analysis.stats.manifest import SAMPLES, TRANSITIONS
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats, load_sample_stats, read_table
from analysis.stats.samples import joined_stats, transitions_of

GROUPS = ("routed", "dense")


def start(tiny, stats, sequences=None, **settings):
    chosen = {"dtype": "float64", "groups": GROUPS} | settings
    return calibration(tiny, stats, sequences, **chosen)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return drain(start(tiny, tmp_path_factory.mktemp("stats")))


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


def test_without_the_group_there_are_no_samples(tiny, run, tmp_path):
    alone = drain(start(tiny, tmp_path, groups=("routed",)))
    assert alone.manifest.files.items() <= run.manifest.files.items()
    with pytest.raises(StatsError, match="calibrate with --group dense"):
        load_sample_stats(alone)


def test_streamed_layers_that_stopped_go_on(tiny, run, tmp_path):
    """Between layers, what every batch chose in the last one is needed for the next."""
    streamed = {"placement": Placement(stream_layers=True, hidden_states_dir=tmp_path / "hidden")}
    task = start(tiny, tmp_path, **streamed)
    for progress in task:
        if progress.at == "layer 3":  # 0, 2 and 3 have experts
            break
    task.close()
    (state,) = tmp_path.glob("*.partial/state.safetensors")
    # Sequences 0, 3 and 6 are the first of their batches.
    saved = safetensors.torch.load_file(state)
    assert {f"chosen.{first}" for first in (0, 3, 6)} <= saved.keys()
    resumed, steps = watched(start(tiny, tmp_path, **streamed))
    assert steps[1].note == "resumed after 3 of 4 layers"
    assert_same_numbers(resumed, run)
    assert not list(tmp_path.glob("*.partial"))


def test_each_token_goes_from_all_it_chose_to_all_it_chooses(run):
    transitions = load_sample_stats(run).transitions
    # top-2 in layers 0, 2, 3: four pairs a token for each of two steps.
    assert [counts.shape for counts in transitions] == [(6, 6), (6, 6)]
    assert [int(counts.sum()) for counts in transitions] == [4 * sum(LENGTHS)] * 2
    routed = load_expert_stats(run).table.set_index("layer")["num_tokens"]
    for step, (layer, after) in enumerate([(0, 2), (2, 3)]):
        # Each token of an expert is counted once for each of the two that it goes on to.
        assert transitions[step].sum(axis=1).tolist() == (2 * routed.loc[layer]).tolist()
        assert transitions[step].sum(axis=0).tolist() == (2 * routed.loc[after]).tolist()


def test_transitions_that_are_not_of_the_model_are_refused(run):
    grid = Grid(run.manifest.model.layers)
    table = read_table(run, TRANSITIONS)
    with pytest.raises(StatsError, match="layer 2 name unknown experts"):
        transitions_of(table.assign(next_expert=table["next_expert"] + (table["layer"] == 2)), grid)
    with pytest.raises(StatsError, match="layers that the model does not have"):
        transitions_of(table.assign(layer=table["layer"] + 1), grid)


def test_merged_runs_have_the_samples_of_all(tiny, run, tmp_path):
    other = drain(start(tiny, tmp_path, make_sequences((4, 8), seed=9, corpus="more.jsonl")))
    merged = load_sample_stats(merge_runs([run, other], tmp_path))
    parts = [load_sample_stats(folder) for folder in (run, other)]
    assert merged.num_tokens.tolist() == [*LENGTHS, 4, 8]
    for name in ("activation", "probability", "loss"):
        joined = np.vstack([getattr(part, name) for part in parts])
        assert np.array_equal(getattr(merged, name), joined)
    added = [a + b for a, b in zip(*(part.transitions for part in parts), strict=True)]
    for found in (merged, joined_stats(parts)):
        assert all(np.array_equal(*pair) for pair in zip(found.transitions, added, strict=True))
    assert np.array_equal(joined_stats(parts).loss, merged.loss)
