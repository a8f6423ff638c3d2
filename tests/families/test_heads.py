"""Statistics of prediction heads (MTP), against a head put together by hand, see `Made`."""

from dataclasses import replace

import numpy as np
import pytest
from calibrations import calibrated, calibration, make_settings, watched
from exports import verified

from analysis.calibration import blocks
from analysis.calibration.loading import Placement
from analysis.calibration.memory import memory_needs, with_blocks
from analysis.calibration.skeleton import StoredTensor
from analysis.drain import drain
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.head_parts import runnable_heads
from analysis.model.opening import load_model_index
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats
from builders import edit_json
from families.headed import HEADED, ROUTED, SEQUENCES, WITH_HEADS, Made, assert_sums, heads_of
from families.settings import HIDDEN
from pruning import Model

EXACT = {"seq_len": 7, "dtype": "float64"}


def assert_as_by_hand(made, stats):
    run = calibrated(made.described, stats, SEQUENCES, **EXACT, groups=WITH_HEADS)
    assert_sums(heads_of(run, made.described), made.wanted(SEQUENCES.rows))
    return run


@pytest.mark.parametrize("headed", HEADED, ids=str)
def test_statistics_of_heads_equal_a_double_loop(built, tmp_path, headed):
    made = Made(built, headed, tmp_path)
    run = assert_as_by_hand(made, tmp_path)
    counts = heads_of(run, made.described)["num_tokens"]
    assert counts.sum() == made.case.top_k * (6 + 3 + 1 + 0 + 5)
    # The trunk's own numbers are those of a run without heads.
    plain = calibrated(made.described, tmp_path, SEQUENCES, **EXACT, groups=ROUTED)
    assert load_expert_stats(plain).table.equals(load_expert_stats(run).table)


def test_a_second_head_gets_what_the_first_gives(built, tmp_path):
    made = Made(built, HEADED[0], tmp_path, heads=2)
    assert_as_by_hand(made, tmp_path)


def test_a_head_of_single_experts_beside_a_stacked_trunk(built, tmp_path):
    """As Qwen3.5 is published."""
    made = Made(
        built, next(h for h in HEADED if h.case == "qwen3_5_moe"), tmp_path, layout="stacked"
    )
    names = made.described.checkpoint.tensors
    assert any(name.endswith("layers.2.mlp.experts.gate_up_proj") for name in names)
    assert "mtp.layers.0.mlp.experts.0.gate_proj.weight" in names
    model = Model(made.path, stats_dir=tmp_path)
    assert_as_by_hand(made, tmp_path)
    model.export(model.plan("reap", "letters.jsonl", sparsity="40%"), tmp_path / "out", mtp="prune")
    verified(tmp_path / "out", level="bytes", source=made.path)


@pytest.mark.parametrize("headed", HEADED, ids=str)
def test_streamed_and_offloaded_layers_give_the_same_bits(built, tmp_path, headed):
    made = Made(built, headed, tmp_path)
    limits = {"max_memory": (("cpu", "40KB"),), "offload_folder": tmp_path}
    ways = [Placement(), Placement(stream_layers=True), Placement(device_map="auto", **limits)]
    tables = []
    for number, place in enumerate(ways):
        asked = {"dtype": "bfloat16", "groups": WITH_HEADS, "placement": place}
        run = calibrated(made.described, tmp_path / str(number), SEQUENCES, **asked)
        tables.append(heads_of(run, made.described))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_a_heads_attention_is_what_the_configuration_says(built, tmp_path):
    made = Made(built, HEADED[5], tmp_path)
    assert runnable_heads(made.described)[0].layers[0].like == 1  # as layer 0, it slides
    edit_json(made.path / "config.json", mtp_layer_types=["full_attention"])
    assert runnable_heads(load_model_index(str(made.path)))[0].layers[0].like == 2
    edit_json(made.path / "config.json", mtp_layer_types=["chunked_attention"])
    with pytest.raises(UnsupportedModelError, match="like several layers of different attention"):
        runnable_heads(load_model_index(str(made.path)))


def test_a_streamed_run_that_stops_before_the_heads_resumes(glm, tmp_path):
    asked = {"groups": WITH_HEADS, "placement": Placement(stream_layers=True)}
    asked["placement"] = replace(asked["placement"], hidden_states_dir=tmp_path / "hidden")
    whole = calibrated(glm.described, tmp_path / "whole", SEQUENCES, **asked)
    task = calibration(glm.described, tmp_path / "stopped", SEQUENCES, **asked)
    next(step for step in task if step.at == "prediction heads")
    task.close()
    run, steps = watched(calibration(glm.described, tmp_path / "stopped", SEQUENCES, **asked))
    assert any("resumed after 3 of 4 layers" in step.note for step in steps)
    assert run.manifest.files == whole.manifest.files


def test_packed_documents_are_counted_as_if_alone(glm, tmp_path):
    rows = [np.concatenate(SEQUENCES.rows[:2])]
    places = (np.concatenate([np.arange(len(row)) for row in SEQUENCES.rows[:2]]).astype(np.int32),)
    packed = replace(SEQUENCES, rows=tuple(rows), positions=places)
    apart = replace(SEQUENCES, rows=SEQUENCES.rows[:2])
    asked = {"seq_len": 11, "dtype": "float64", "groups": WITH_HEADS}
    both = [
        calibrated(glm.described, tmp_path / n, sequences, **asked)
        for n, sequences in (("packed", packed), ("apart", apart))
    ]
    one, other = (heads_of(run, glm.described) for run in both)
    assert one["num_tokens"].tolist() == other["num_tokens"].tolist()
    np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-6)


@pytest.mark.parametrize("groups", ["routed,gradient,heads", "routed,router,damage,dense,heads"])
def test_heads_beside_other_groups(glm, tmp_path, groups):
    groups = tuple(groups.split(","))
    alone = calibrated(glm.described, tmp_path, SEQUENCES, dtype="float64", groups=WITH_HEADS)
    beside = calibrated(glm.described, tmp_path, SEQUENCES, dtype="float64", groups=groups)
    without = calibrated(
        glm.described, tmp_path / "without", SEQUENCES, dtype="float64", groups=groups[:-1]
    )
    table = heads_of(beside, glm.described)
    np.testing.assert_allclose(
        table.to_numpy(), heads_of(alone, glm.described).to_numpy(), rtol=1e-9
    )
    assert load_expert_stats(beside).table.equals(load_expert_stats(without).table)


def test_merges_have_heads(glm, tmp_path):
    parts = [replace(SEQUENCES, corpus=f"{at}.jsonl", rows=SEQUENCES.rows[at::2]) for at in (0, 1)]
    asked = {"dtype": "float64", "groups": WITH_HEADS}
    runs = [calibrated(glm.described, tmp_path, part, **asked) for part in parts]
    whole = heads_of(calibrated(glm.described, tmp_path, SEQUENCES, **asked), glm.described)
    merged = heads_of(merge_runs(runs, tmp_path), glm.described)
    sums = whole.drop(columns="vector_sum_sq")
    assert list(merged) == list(sums)  # the norm of a sum of vectors does not add up
    np.testing.assert_allclose(merged.to_numpy(), sums.to_numpy(), rtol=1e-12)


def test_streamed_heads_load_no_output_head(glm, tmp_path, monkeypatch):
    read, read_into = [], StoredTensor.read_into

    def noting(stored, target):
        read.append(stored.entry.name)
        read_into(stored, target)

    monkeypatch.setattr(StoredTensor, "read_into", noting)
    asked = {"groups": WITH_HEADS, "placement": Placement(stream_layers=True)}
    drain(calibration(glm.described, tmp_path / "stats", SEQUENCES, **asked))
    assert "model.norm.weight" in read
    assert "lm_head.weight" not in read


def test_heads_are_refused_where_a_layer_does_not_fit(glm, monkeypatch):
    monkeypatch.setattr(blocks, "free_memory", lambda: 1000)
    settings = make_settings(groups=WITH_HEADS, placement=Placement(stream_layers=True))
    with pytest.raises(CheckpointError, match=r"does not fit into memory, .* the group heads"):
        with_blocks(glm.described, SEQUENCES, settings)


def test_streamed_heads_need_memory_for_embeddings(glm):
    needs = [
        memory_needs(glm.described, SEQUENCES, make_settings(groups=groups)).streamed
        for groups in (ROUTED, WITH_HEADS)
    ]
    tensors = glm.described.checkpoint.tensors
    ends = sum(tensors[name].nbytes for name in ("model.embed_tokens.weight", "model.norm.weight"))
    # A head is loaded whole, and is larger than a layer.
    head, layer = (
        sum(entry.nbytes for name, entry in tensors.items() if f".layers.{number}." in name)
        for number in (glm.described.depth, glm.described.depth - 1)
    )
    # The sums of the head's layer, 7 experts: 8 shards of 15 sums, a vector and a maximum.
    assert needs[1] - needs[0] == ends + head - layer + 7 * 8 * (120 + HIDDEN + 1)
