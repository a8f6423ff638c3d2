"""Candidates measured layer by layer: the bits of the loaded model, weights read once a pass."""

import numpy as np
import pytest
from masked_cases import DEEP, plans_of, sequences, subject_of
from search_cases import essence, searched, space, task

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.skeleton import StoredTensor
from analysis.drain import drain
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings
from pruning.measures.samples import make_samples
from pruning.plan.plan import model_ref
from pruning.requests.search_settings import SearchSettings
from pruning.search.fitness import RunFitness, StreamedRuns, masked_fitness

CASE = DEEP[0]


def streamed(path, case, measure="esap"):
    """Fitness on a checkpoint; one that is loaded as a whole, of the same model."""
    model = tiny_model(case)
    model.save_pretrained(path / "model")
    described = load_model_index(str(path / "model"))
    runs = StreamedRuns(
        described,
        make_samples(sequences(), batch_size=2),
        CalibrationSettings(
            seq_len=12, dtype="float32", device="cpu", placement=Placement(stream_layers=True)
        ),
        plans_of(case, model_ref(described)),
        MeasureSettings((measure,), 5),
        path / "unfinished",
    )
    # Nothing is reused: the candidates may differ in one layer alone.
    loaded = masked_fitness(subject_of(case, model), measure, 5, 0)
    return RunFitness(runs, measure), loaded


def candidates_of(case):
    """Nothing, everything that may go, and one layer at a time."""
    most = case.experts - case.smallest
    single = [
        tuple(case.groups * (at == position) for at in range(len(case.sparse)))
        for position in range(len(case.sparse))
    ]
    return list(dict.fromkeys([(0,) * len(case.sparse), (most,) * len(case.sparse), *single]))


# Every family is in test_streamed_plans.py.
@pytest.mark.parametrize("case", [*DEEP[1:], BY_NAME["deepseek_v3-groups"]], ids=str)
def test_values_are_those_of_the_loaded_model_bit_for_bit(tmp_path, case):
    fitness, loaded = streamed(tmp_path, case)
    candidates = candidates_of(case)
    drain(fitness.prepare(candidates))
    assert fitness.num_blocks == loaded.num_blocks and fitness.num_layers == loaded.num_layers
    for removed in candidates:
        for number in range(loaded.num_blocks):
            got, wanted = fitness.block(removed, number), loaded.block(removed, number)
            np.testing.assert_array_equal(got.sums, wanted.sums)
            np.testing.assert_array_equal(got.counts, wanted.counts)
    assert not list(tmp_path.glob("unfinished/*.partial"))


def test_each_layer_runs_once_for_all_candidates_that_are_alike_so_far(tmp_path):
    """Five layers. Of one layer alone, the k-th of five runs from layer k on: 5 - k layers."""
    fitness, _ = streamed(tmp_path, CASE)
    single = [tuple(int(at == position) for at in range(5)) for position in range(5)]
    drain(fitness.prepare(single))
    assert [fitness.block(removed, 0).layers for removed in single] == [5, 4, 3, 2, 1]


def test_a_search_is_the_same_and_reads_each_weight_once_a_generation(tmp_path, monkeypatch):
    fitness, loaded = streamed(tmp_path, CASE, "kl")
    settings = SearchSettings(population=4, elites=2, generations=3, seed=3)
    wanted = task(5, settings, layers=fitness.runs.model.layers)
    read = []
    whole = StoredTensor.read_into

    def noted(self, target):
        read.append(self.entry.name)
        whole(self, target)

    monkeypatch.setattr(StoredTensor, "read_into", noted)
    one = {"measure": "kl", "sequences": sequences()}
    ours = searched(tmp_path / "ours", wanted, fitness, **one)
    theirs = searched(tmp_path / "theirs", wanted, loaded, **one)
    assert essence(ours) == essence(theirs)
    assert space(5, fitness.runs.model.layers).size > len(ours.candidates) > 4
    passes = len({candidate.generation for candidate in ours.candidates})
    assert sorted(read) == sorted([*fitness.runs.model.checkpoint.tensors] * passes)
