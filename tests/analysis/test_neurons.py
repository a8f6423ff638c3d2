"""Statistics of neurons: which tokens count, how they add up, what is refused, what ranks.

That one run's numbers are the papers' is shown in tests/families/test_heapr.py.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from calibrations import (
    calibrated,
    describe,
    labelled,
    make_sequences,
    make_settings,
    part_of,
    table_of,
)
from torch.nn import functional

from analysis.calibration import blocks
from analysis.calibration.experts import collecting
from analysis.calibration.feed import feed_backward
from analysis.calibration.loading import Placement, load_model
from analysis.calibration.memory import check_fits, memory_needs
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.spec import CorpusWeight
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import CheckpointError, CriterionError, StatsError
from analysis.ranking.coverage import Blender
from analysis.ranking.experts import rank_experts
from analysis.ranking.neurons import neuron_saliency, rank_neurons, read_neurons
from analysis.stats.blend import Mixture, blend, blend_neurons
from analysis.stats.manifest import NEURONS, Part
from analysis.stats.merging import merge_runs
from analysis.stats.neurons import NEURON_COLUMNS, NEURON_INDEX, NeuronStats, load_neuron_stats
from analysis.stats.reading import read_table, verify_run
from analysis.stats.store import StatsStore
from builders.statistics import run_manifest

GRADIENT = ("routed", "gradient")
HEAPR, CAMERA = get_criterion("heapr"), get_criterion("camera-p")
# Sums in another order differ by their rounding only; routers round to float32 in any model.
ROUNDING = 1e-5


def run_of(tiny, stats, sequences=None, **settings):
    chosen = {"dtype": "float64", "groups": GRADIENT} | settings
    return calibrated(tiny, stats, sequences, **chosen)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return run_of(tiny, tmp_path_factory.mktemp("stats"))


def neurons(run):
    return read_table(run, NEURONS)


def assert_close(table, other, tolerance=ROUNDING):
    pd.testing.assert_frame_equal(table, other, rtol=tolerance, atol=0)


def test_a_run_has_one_row_for_every_neuron(run, tiny):
    table = neurons(run)
    assert dict(table.dtypes.astype(str)) == NEURON_COLUMNS
    expected = [
        (layer.index, expert, neuron)
        for layer in tiny.layers
        for expert in range(layer.num_experts)
        for neuron in range(24)
    ]
    assert list(table[list(NEURON_INDEX)].itertuples(index=False, name=None)) == expected
    assert np.isfinite(table.to_numpy()).all()
    # A maximum of numbers lies between their root mean square and the root of their sum.
    counts = load_neuron_stats(run).table["num_tokens"]
    assert (table["output_max"] ** 2 <= table["output_sq"] * (1 + 1e-12)).all()
    assert (table["output_max"] ** 2 * counts >= table["output_sq"] * (1 - 1e-12)).all()
    verify_run(run)


def test_the_other_groups_do_not_change(run, tiny, tmp_path):
    everything = ("routed", "router", "damage", "gradient")
    whole = run_of(tiny, tmp_path / "whole", groups=everything)
    without = run_of(tiny, tmp_path / "without", groups=everything[:3])
    shared = table_of(without).columns
    assert_close(table_of(whole)[list(shared)], table_of(without), 1e-10)
    assert_close(neurons(whole), neurons(run), 1e-10)


def test_recomputed_activations_give_the_same_numbers(run, tiny, tmp_path):
    for groups in (GRADIENT, ("routed", "router", "damage", "gradient")):
        again = run_of(
            tiny, tmp_path, groups=groups, placement=Placement(checkpoint_activations=True)
        )
        assert_close(neurons(again), neurons(run), 1e-10)


def by_autograd(tiny, sequences):
    """The sums of the first sparse layer's expert 0, by torch's autograd on the stock model."""
    model = load_model(tiny, make_settings(dtype="float64")).requires_grad_(True)
    model.set_experts_implementation("eager")
    layer = tiny.layers[0].index
    experts = model.get_submodule(tiny.family.block_module(layer)).experts
    gate, up = experts.gate_up_proj[0].detach().chunk(2)
    down = experts.down_proj[0].detach()
    squares = down.square().sum(dim=0)
    outputs, slopes = torch.zeros(2, 24, dtype=torch.float64)
    calls = []
    experts.register_forward_hook(lambda _, args, output: calls.append((*args, output)))
    for row, counted in zip(sequences.rows, sequences.counted, strict=True):
        ids, wanted = torch.from_numpy(row).long(), torch.from_numpy(counted)
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        losses = functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
        hidden, index, weights, y = calls.pop()
        (dy,) = torch.autograd.grad((losses * wanted[1:]).sum(), y)
        for token, place in (index == 0).nonzero().tolist():
            if wanted[token]:
                a = functional.silu(gate @ hidden[token]) * (up @ hidden[token])
                outputs += (a.square() * squares).detach()
                slopes += (down.T @ (weights[token, place] * dy[token])).square().detach() / squares
    return outputs, slopes


def test_with_answers_only_the_loss_and_the_sums_are_theirs(tiny, tmp_path):
    sequences = labelled("pad", "response")
    table = neurons(run_of(tiny, tmp_path, sequences, batch_size=1))
    rows = table[(table["layer"] == tiny.layers[0].index) & (table["expert"] == 0)]
    outputs, slopes = by_autograd(tiny, sequences)
    assert outputs.min() > 0
    np.testing.assert_allclose(rows["output_sq"], outputs, rtol=1e-6)
    np.testing.assert_allclose(rows["slope_sq"], slopes, rtol=1e-6)


def test_without_a_target_the_activations_still_count(tiny, tmp_path):
    rows = tuple(np.array([token], np.int32) for token in (5, 9, 17))
    table = neurons(run_of(tiny, tmp_path, TokenSequences("ones", rows, 3, 0)))
    assert table["output_sq"].sum() > 0
    assert (table["slope_sq"] == 0).all()


def test_merged_halves_are_one_run(tiny, tmp_path):
    whole = make_sequences()
    settings = {"batch_size": 1}
    one = run_of(tiny, tmp_path / "one", whole, **settings)
    halves = [
        run_of(tiny, tmp_path / "halves", part_of(whole, *span), **settings)
        for span in ((0, 3), (3, 7))
    ]
    merged = merge_runs(halves, tmp_path / "halves")
    assert merged.manifest.groups == GRADIENT
    assert_close(neurons(merged), neurons(one), 1e-12)
    assert_close(table_of(merged), table_of(one), 1e-12)
    for criterion in (HEAPR, CAMERA):
        mine, theirs = (load_neuron_stats(folder).table for folder in (merged, one))
        np.testing.assert_allclose(
            criterion.neuron_score(mine), criterion.neuron_score(theirs), rtol=1e-12
        )


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    stats = tmp_path_factory.mktemp("two")
    return [
        run_of(tiny, stats, make_sequences(seed=seed, corpus=f"{seed}.jsonl")) for seed in (5, 9)
    ]


def test_an_expert_in_a_blend_is_the_sum_of_its_neurons(two):
    parts = [Part(two[0], 0.3), Part(two[1], 2.0)]
    mixed = blend_neurons(parts)
    scores = mixed.table.assign(score=HEAPR.neuron_score(mixed.table))
    sums = scores.groupby(["layer", "expert"])["score"].sum()
    ranking = rank_experts(HEAPR, blend(parts), "applied")
    np.testing.assert_allclose(ranking["score"], sums, rtol=1e-12)
    uneven = rank_experts(HEAPR, blend([Part(run) for run in two]), "applied")
    assert not np.allclose(uneven["score"], sums, rtol=1e-3)


def test_maxima_have_no_blend(two):
    parts, mixture = [Part(run) for run in two], Mixture(two)
    with pytest.raises(CriterionError, match=r"CAMERA-P reads maxima, which a blend does not"):
        rank_neurons(CAMERA, blend_neurons(parts).table)
    with pytest.raises(CriterionError, match=r"neuron_norm_sum for CAMERA-P: .* blends and parts"):
        rank_experts(CAMERA, blend(parts), "applied")
    with pytest.raises(CriterionError, match=r"CAMERA-P reads maxima .* use one corpus"):
        Blender(mixture, CAMERA, "applied", Fraction(1, 2))
    assert (Blender(mixture, HEAPR, "applied", Fraction(1, 2)).coverage([1.0, 1.0]) > 0.5).all()


WIDTHS = {7: [1], 3: [2, 2]}  # layer -> neurons of each expert


@pytest.fixture
def hand():
    """Two experts of two neurons in the first layer, one of one in the second; expert 1 unrouted.

    HEAPr by hand, 1/2 * output_sq / N * slope_sq / N: 1/2 * 8/4 * 12/4 = 3, 1/2 * 4/4 * 4/4 = 0.5;
    0; 1/2 * 2/2 * 2/2 = 0.5.
    """
    manifest = run_manifest(counts=(2, 1))
    rows = [
        (3, 0, 0, 8.0, 12.0, 2.0, 4),
        (3, 0, 1, 4.0, 4.0, 1.5, 4),
        (3, 1, 0, 0.0, 0.0, 0.0, 0),
        (3, 1, 1, 0.0, 0.0, 0.0, 0),
        (7, 0, 0, 2.0, 2.0, 1.0, 2),
    ]
    table = pd.DataFrame(rows, columns=[*NEURON_COLUMNS, "num_tokens"])
    return NeuronStats(manifest, table)


def test_saliency_is_laid_out_by_layer_and_expert(hand):
    laid = neuron_saliency(HEAPR, hand.table, WIDTHS)
    assert {layer: [values.tolist() for values in held] for layer, held in laid.items()} == {
        3: [[3.0, 0.5], [0.0, 0.0]],
        7: [[0.5]],
    }


def test_neurons_are_chosen_where_they_were_measured(two, tiny):
    store = StatsStore(two[0].path.parent)
    chosen = drain(read_neurons(HEAPR, store, tiny, [CorpusWeight("9.jsonl", 2.0)]))
    assert chosen.runs == (two[1],)
    assert chosen.corpora == ("9.jsonl:2",)
    random = get_criterion("random")
    # One row a neuron, in the order of the statistics.
    read, index = drain(read_neurons(random, store, tiny)), ["layer", "expert", "neuron"]
    assert read.stats[index].equals(chosen.stats[index])


def test_backward_needs_all_layers(tiny):
    with pytest.raises(StatsError, match=r"needs all layers in memory.*leave out --stream-layers"):
        make_settings(groups=GRADIENT, placement=Placement(stream_layers=True))
    with pytest.raises(StatsError, match=r"--checkpoint-activations is for the group gradient"):
        make_settings(placement=Placement(checkpoint_activations=True))


# Of the second every layer has experts.
@pytest.mark.parametrize("model_type", ["qwen3_moe", "olmoe"])
def test_activations_that_do_not_fit_name_the_options(model_type, tmp_path, monkeypatch):
    model = describe(tmp_path, model_type)
    settings = make_settings(groups=GRADIENT)
    needs = memory_needs(model, make_sequences(), settings)
    plain = memory_needs(model, make_sequences(), make_settings())
    added = sums_of(model, GRADIENT).tensors(), sums_of(model).tensors()
    sums = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in added]
    assert needs.whole_model - plain.whole_model == needs.graph + sums[0] - sums[1]
    # Two sums and a maximum of 24 neurons, in float64.
    assert sums[0] - sums[1] == 24 * 24 * sum(layer.num_experts for layer in model.layers)
    recomputed = replace(settings, placement=Placement(checkpoint_activations=True))
    assert 0 < memory_needs(model, make_sequences(), recomputed).graph < needs.graph
    monkeypatch.setattr(blocks, "free_memory", lambda: plain.whole_model)
    with pytest.raises(CheckpointError, match=r"--batch-size, .*--seq-len, or --checkpoint-act"):
        check_fits(model, make_sequences(), settings)
    assert "--checkpoint-activations" in replace(needs, free=0).advice
    # A batch of one sequence is not made smaller.
    for asked in (needs, replace(needs, graph=0)):
        advice = [replace(asked, free=0, batch_size=size).advice for size in (2, 1)]
        assert ["--batch-size" in words for words in advice] == [True, False]


def test_a_merge_with_a_run_without_neurons_has_none(run, tiny, tmp_path):
    other = make_sequences(seed=9, corpus="other.jsonl")
    plain = run_of(tiny, tmp_path, other, groups=("routed",))
    merged = merge_runs([run, plain], tmp_path)
    assert NEURONS not in merged.manifest.files
    with pytest.raises(StatsError, match=r"no statistics of neurons; calibrate with --group"):
        load_neuron_stats(merged)
    with pytest.raises(CriterionError, match=r"lack neuron_product for HEAPr: .*gradient"):
        rank_experts(HEAPR, blend([Part(merged)]), "applied")


def refuse(error):
    def hook(*_):
        raise error

    return hook


CPU = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


TOO_LARGE = r"3 sequences of 9 tokens do not fit .*--batch-size"


HEADS = {
    "a GPU that is full": (refuse(torch.OutOfMemoryError("CUDA")), CheckpointError, TOO_LARGE),
    "a CPU that is full": (refuse(RuntimeError(CPU)), CheckpointError, TOO_LARGE),
    "another error": (refuse(ZeroDivisionError("by zero")), ZeroDivisionError, "by zero"),
    "another error of torch": (refuse(RuntimeError("shapes")), RuntimeError, "shapes"),
    "a loss that is no number": (
        lambda *args: args[2] * float("nan"),
        StatsError,
        "The loss has values that are not finite",
    ),
}


@pytest.mark.parametrize(("hook", "error", "message"), HEADS.values(), ids=HEADS)
def test_what_goes_wrong_in_the_head_is_told_apart(tiny, hook, error, message):
    model = load_model(tiny, make_settings(groups=GRADIENT))
    model.get_output_embeddings().register_forward_hook(hook)
    batch, sums = next(make_sequences().batches(3)), sums_of(tiny, GRADIENT)
    with collecting(model, tiny, sums), pytest.raises(error, match=message):
        feed_backward(model, batch)


def test_the_model_is_left_as_it_was(tiny):
    model = load_model(tiny, make_settings(groups=GRADIENT))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = next(make_sequences().batches(3))
    with collecting(model, tiny, sums_of(tiny, GRADIENT)):
        feed_backward(model, batch)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
