"""Calibration runs: batches, halves and interruptions, what a run is, and bad input."""

import numpy as np
import pytest
import torch
from calibrations import (
    LENGTHS,
    assert_same_numbers,
    calibrated,
    calibration,
    describe,
    make_sequences,
    make_settings,
    table_of,
    watched,
)
from safetensors.torch import load_file, save_file

from analysis.calibration.loading import load_tokenizer
from analysis.calibration.manifest import plan_run
from analysis.calibration.partial import PartialRun
from analysis.calibration.run import calibrate
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.errors import CheckpointError, StatsError
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from builders import TOP_K, tiny_model


@pytest.fixture
def described(tmp_path):
    return describe(tmp_path / "model")


@pytest.fixture
def store(tmp_path):
    return StatsStore(tmp_path / "stats")


def stopped(described, store, steps=3, **settings):
    """What is done at each step of a calibration that is then stopped."""
    task = calibration(described, store, **settings)
    done = [next(task).done for _ in range(steps)]
    task.close()
    return done


@pytest.mark.parametrize("groups", ["routed", "routed router damage dense", "routed gradient"])
def test_a_closed_calibration_resumes_with_the_same_bits(described, store, groups, tmp_path):
    asked = {"groups": tuple(groups.split())}
    once = calibrated(described, tmp_path / "once", **asked)
    # Loading, loaded, then two of three batches.
    assert stopped(described, store, 4, **asked) == [0, 0, 9 + 5 + 7, 9 + 5 + 7 + 3 + 9 + 2]
    assert store.runs() == []
    assert all(".partial" in path.name for path in store.target.iterdir())

    resumed, steps = watched(calibration(described, store, **asked))
    assert [step.note for step in steps if step.note] == ["resumed after 35 of 41 tokens"]
    assert [step.done for step in steps] == [0, 35, 41]
    assert_same_numbers(resumed, once)
    assert not list(store.target.glob("*.partial"))


def test_a_run_in_the_cache_is_returned_at_once(described, store):
    first = drain(calibration(described, store))
    again, steps = watched(calibration(described, store, batch_size=1))
    assert [step.phase for step in steps] == ["cached"]
    assert again == first
    assert again.manifest.made["batch_size"] == 3


def test_a_run_that_ends_without_work_leaves_nothing_behind(described, store):
    manifest = plan_run(described, make_sequences(), make_settings())
    held = PartialRun(store.target, manifest)
    with held.locked():
        assert [path.name for path in store.target.glob("*.partial")] == [held.path.name]
        second = PartialRun(store.target, manifest).locked()
        with pytest.raises(StatsError, match="another"), second:
            pytest.fail("held twice")
        # Whoever is turned away takes nothing from the one that holds it.
        assert held.path.is_dir()
        assert len(list(store.target.glob(".*.lock"))) == 1
    assert list(store.target.iterdir()) == []


def test_digest_covers_what_changes_the_numbers(described, tmp_path):
    plan = plan_run(described, make_sequences(), make_settings())
    changed = [
        plan_run(described, make_sequences(seed=6), make_settings()),
        plan_run(described, make_sequences((9, 5, 7, 3, 9, 2)), make_settings()),
        # The same tokens, cut elsewhere.
        plan_run(
            described,
            TokenSequences("letters.jsonl", (np.concatenate(make_sequences().rows),), 7, 0),
            make_settings(),
        ),
        plan_run(described, make_sequences(), make_settings(seed=43)),
        plan_run(described, make_sequences(), make_settings(dtype="bfloat16")),
        plan_run(described, make_sequences(), make_settings(seq_len=10)),
        *(
            plan_run(described, make_sequences(), make_settings(groups=("routed", *groups)))
            for groups in (("router",), ("damage",), ("router", "damage"))
        ),
        plan_run(describe(tmp_path / "other", "olmoe", seed=1), make_sequences(), make_settings()),
    ]
    digests = {plan.digest, *(other.digest for other in changed)}
    assert len(digests) == 1 + len(changed)
    same = plan_run(described, make_sequences(), make_settings(batch_size=7, dtype="float32"))
    assert same.digest == plan.digest
    # Older runs, which knew no groups, keep their digest.
    assert plan.settings == {"seq_len": 9, "seed": 42, "dtype": "float32"}
    assert plan.run_id == f"model-letters-{plan.digest[:8]}"


def test_the_manifest_says_how_the_run_was_made(tmp_path):
    described = describe(tmp_path / "model", "qwen3_moe")
    run = calibrated(described, tmp_path / "stats")
    assert run.manifest.settings == {"seq_len": 9, "seed": 42, "dtype": "float32"}
    made = run.manifest.made
    assert made["device"] == "cpu"
    assert set(made["versions"]) == {"python", "torch", "transformers", "numpy"}
    assert made["peak_memory_bytes"] > 10_000_000
    assert made["tokens_per_second"] > 0
    assert [layer.index for layer in run.manifest.model.layers] == [0, 2, 3]
    (corpus,) = run.manifest.corpora
    assert (corpus.num_sequences, corpus.num_tokens, corpus.num_padded) == (7, 41, 19)


def test_values_that_are_no_numbers_store_nothing(tmp_path):
    model = tiny_model("olmoe")
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.experts").down_proj[:] = torch.inf
    model.save_pretrained(tmp_path / "model")
    described, store = load_model_index(str(tmp_path / "model")), StatsStore(tmp_path / "stats")
    with pytest.raises(StatsError, match=r"not finite in float32"):
        calibrated(described, store)
    assert list(store.target.iterdir()) == []


def test_a_missing_tensor_is_named(tmp_path):
    described = describe(tmp_path / "model", "olmoe", shards=1)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    described = load_model_index(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight"):
        calibrated(described, tmp_path / "s")


def test_a_checkpoint_without_a_tokenizer_says_so(described):
    # transformers would make one with two tokens in it.
    with pytest.raises(CheckpointError, match=r"model has no readable tokenizer; .* input_ids"):
        load_tokenizer(described)


def test_without_resume_an_interrupted_run_starts_anew(described, store):
    stopped(described, store)
    task = calibrate(described, make_sequences(), make_settings(), store, resume=False)
    run, steps = watched(task)
    assert [step.done for step in steps] == [0, 0, 21, 35, 41]
    assert table_of(run)["num_tokens"].sum() == 3 * TOP_K * sum(LENGTHS)


def test_a_state_without_all_sums_starts_anew(described, store, tmp_path):
    # As an earlier version saved it, which did not collect one of them.
    stopped(described, store)
    manifest = plan_run(described, make_sequences(), make_settings())
    partial = PartialRun(store.target, manifest)
    state, sums = partial.restore()
    partial.save({name: sums[name] for name in sums if name != "largest.1"}, state)
    run, steps = watched(calibration(described, store))
    assert [step.done for step in steps] == [0, 0, 21, 35, 41]
    assert_same_numbers(run, calibrated(described, tmp_path / "once"))


def test_an_exception_inside_a_batch_keeps_the_last_saved_state(described, store):
    # The sums may hold half a batch, so they are not saved; nothing passes for finished.
    task = calibration(described, store)
    next(task), next(task), next(task)
    with pytest.raises(KeyboardInterrupt):
        task.throw(KeyboardInterrupt)
    assert store.runs() == []
    _, steps = watched(calibration(described, store))
    assert [step.done for step in steps] == [0, 0, 21, 35, 41]


def test_a_damaged_run_is_reported_before_the_work(described, store):
    run = drain(calibration(described, store))
    (run.path / "manifest.json").write_text("{")
    task = calibration(described, store)
    with pytest.raises(StatsError, match="delete"):
        next(task)
