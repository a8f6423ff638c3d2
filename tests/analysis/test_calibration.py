"""Calibration: the sums against a double loop in plain calls, and what interruptions leave."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from analysis.calibration.experts import IMPLEMENTATION, RoutedSums, batch_mask, collecting
from analysis.calibration.run import (
    CalibrationSettings,
    calibrate,
    load_tokenizer,
    plan_run,
    resolve_device,
    resolve_dtype,
)
from analysis.corpora import TokenSequences
from analysis.drain import drain
from analysis.errors import CheckpointError, CorpusError, StatsError
from analysis.model import load_model_index
from analysis.stats import MOMENT_COLUMNS
from analysis.store import StatsStore, load_expert_stats, merge_runs, read_vectors
from builders import MODEL_TYPES, SPARSE_LAYERS, TOP_K, VOCAB, tiny_checkpoint, tiny_model

# Written out here, not built from the program's own names.
COLUMNS = {
    ("applied", 0, 0): "num_tokens",
    ("applied", 0, 1): "g0_f1",
    ("applied", 0, 2): "g0_f2",
    ("applied", 1, 0): "applied_g1_f0",
    ("applied", 1, 1): "applied_g1_f1",
    ("applied", 1, 2): "applied_g1_f2",
    ("applied", 2, 0): "applied_g2_f0",
    ("applied", 2, 1): "applied_g2_f1",
    ("applied", 2, 2): "applied_g2_f2",
    ("renormalized", 1, 0): "renormalized_g1_f0",
    ("renormalized", 1, 1): "renormalized_g1_f1",
    ("renormalized", 1, 2): "renormalized_g1_f2",
    ("renormalized", 2, 0): "renormalized_g2_f0",
    ("renormalized", 2, 1): "renormalized_g2_f1",
    ("renormalized", 2, 2): "renormalized_g2_f2",
}
# Where one expert's matrices lie on disk: gate, up, down.
ON_DISK = {
    "olmoe": ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    "qwen3_moe": ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe.experts", "w1", "w3", "w2"),
}
LENGTHS = (9, 5, 7, 3, 9, 2, 6)


def make_sequences(lengths=LENGTHS, seed=5, corpus="letters.jsonl"):
    rng = np.random.default_rng(seed)
    rows = tuple(rng.integers(3, VOCAB, size=n).astype(np.int32) for n in lengths)
    return TokenSequences(corpus, rows, len(rows), 0)


def part_of(sequences, start, stop):
    rows = sequences.rows[start:stop]
    return TokenSequences(sequences.corpus, rows, len(rows), 0)


def make_settings(**changes):
    return CalibrationSettings(**{"seq_len": 9, "batch_size": 3, "device": "cpu", **changes})


def describe(path, model_type="olmoe", **options):
    tiny_checkpoint(path, model_type, **options)
    return load_model_index(str(path))


def table_of(run):
    return load_expert_stats(run).table


def assert_same_numbers(run, other):
    """Bit for bit: the files, hence every number in them."""
    assert run.manifest.files == other.manifest.files
    pd.testing.assert_frame_equal(table_of(run), table_of(other), check_exact=True)


# --- the numbers -----------------------------------------------------------------------------


def routed_by_the_model(model, layer, row):
    """What one router really did: its input, the gate weights and the experts of each token."""
    seen = []
    router = model.get_submodule(f"model.layers.{layer}.mlp.gate")
    handle = router.register_forward_hook(lambda _, inputs, output: seen.append((inputs, output)))
    with torch.no_grad():
        model(input_ids=torch.from_numpy(row.astype(np.int64))[None], use_cache=False)
    handle.remove()
    ((hidden,), (_, weights, index)) = seen[0]
    return hidden.reshape(len(row), -1), weights, index


def expert_output(tensors, model_type, layer, expert, x):
    block, gate, up, down = ON_DISK[model_type]
    name = f"model.layers.{layer}.{block}.{expert}"
    inner = functional.silu(functional.linear(x, tensors[f"{name}.{gate}.weight"]))
    inner = inner * functional.linear(x, tensors[f"{name}.{up}.weight"])
    return functional.linear(inner, tensors[f"{name}.{down}.weight"])


def brute_force(path, model, model_type, rows):
    """Double loop over tokens and experts, each sequence alone: nothing is padded or batched."""
    tensors = {
        name: tensor
        for file in path.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    experts = model.config.num_local_experts if model_type != "olmoe" else model.config.num_experts
    layers = SPARSE_LAYERS[model_type]
    sums = {(layer, e): dict.fromkeys(COLUMNS, 0.0) for layer in layers for e in range(experts)}
    vectors = {key: torch.zeros(model.config.hidden_size, dtype=torch.float64) for key in sums}
    for layer, row in itertools.product(layers, rows):
        hidden, weights, index = routed_by_the_model(model, layer, row)
        for token, expert in itertools.product(range(len(row)), range(experts)):
            chosen = index[token].tolist()
            if expert not in chosen:
                continue
            gate = float(weights[token, chosen.index(expert)])
            gates = {"applied": gate, "renormalized": gate / float(weights[token].double().sum())}
            f = expert_output(tensors, model_type, layer, expert, hidden[token])
            norm = float(f.square().sum().sqrt())
            for convention, alpha, beta in COLUMNS:
                term = gates[convention] ** alpha * norm**beta
                sums[layer, expert][convention, alpha, beta] += term
            vectors[layer, expert] += f
    return sums, vectors


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("olmoe", {}),
        ("olmoe", {"norm_topk_prob": True}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("mixtral", {}),
    ],
    ids=["olmoe", "olmoe-normalised", "qwen3_moe", "qwen3_moe-unnormalised", "mixtral"],
)
def test_sums_equal_a_double_loop_over_tokens_and_experts(tmp_path, model_type, changes):
    model = tiny_model(model_type, dtype=torch.float64, **changes)
    model.save_pretrained(tmp_path / "model")
    sequences = make_sequences()
    described = load_model_index(str(tmp_path / "model"))
    run = drain(calibrate(described, sequences, make_settings(), StatsStore(tmp_path / "stats")))

    assert run.manifest.settings["dtype"] == "float64"
    assert run.manifest.corpora[0].num_padded == (9 + 9 + 9 + 9 + 9 + 9 + 6) - sum(LENGTHS)
    model.set_experts_implementation("eager")
    sums, vectors = brute_force(tmp_path / "model", model, model_type, sequences.rows)
    table = table_of(run)
    assert list(zip(table["layer"], table["expert"], strict=True)) == list(sums)
    for key, column in COLUMNS.items():
        expected = [each[key] for each in sums.values()]
        assert table[column].tolist() == pytest.approx(expected, rel=1e-9, abs=0), column
    stacked = torch.stack(list(vectors.values())).numpy()
    scale = np.abs(stacked).max()
    np.testing.assert_allclose(read_vectors(run), stacked, rtol=1e-9, atol=1e-12 * scale)
    expected = (stacked**2).sum(axis=1)
    np.testing.assert_allclose(table["vector_sum_sq"], expected, rtol=1e-9, atol=0)


def test_there_are_fifteen_sums_and_each_has_a_column():
    assert set(COLUMNS.values()) == set(MOMENT_COLUMNS)
    assert len(MOMENT_COLUMNS) == 15


def test_the_gate_conventions_differ_where_the_model_does_not_renormalise(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    run = drain(
        calibrate(described, make_sequences(), make_settings(), StatsStore(tmp_path / "stats"))
    )
    by_layer = (
        table_of(run).groupby("layer")[["num_tokens", "applied_g1_f0", "renormalized_g1_f0"]].sum()
    )
    # Renormalised gates of a token add up to 1, and every token has TOP_K of them.
    tokens = sum(LENGTHS)
    assert by_layer["num_tokens"].tolist() == [TOP_K * tokens] * 3
    assert by_layer["renormalized_g1_f0"].tolist() == pytest.approx([tokens] * 3, rel=1e-6)
    assert (by_layer["applied_g1_f0"] < 0.99 * tokens).all()


# --- the model computes what it computed before ----------------------------------------------


def padded_batch():
    ids = torch.from_numpy(np.random.default_rng(7).integers(3, VOCAB, size=(3, 8)))
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, 5:] = mask[2, 2:] = False
    return ids, mask


def sums_for(described):
    return RoutedSums(described.layers, described.hidden_size)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_equal_the_stock_implementation_bit_for_bit(tmp_path, model_type):
    checkpoint = tiny_checkpoint(tmp_path, model_type)
    described, model = load_model_index(str(tmp_path)), checkpoint.model
    ids, mask = padded_batch()
    model.set_experts_implementation("eager")
    sums = sums_for(described)
    with torch.no_grad():
        stock = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
        with collecting(model, described, sums):
            batch_mask(mask)
            ours = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
    assert torch.equal(ours, stock)
    counted = sum(float(moments[:, 0].sum()) for moments in sums.moments_EM.values())
    assert counted == len(described.layers) * TOP_K * int(mask.sum())


def test_padding_is_never_counted(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path, "olmoe", dtype=torch.float64)
    described, model = load_model_index(str(tmp_path)), checkpoint.model
    ids, mask = padded_batch()
    wide_ids = torch.nn.functional.pad(ids, (0, 6), value=11)
    wide_mask = torch.nn.functional.pad(mask, (0, 6), value=False)
    found = []
    for batch, real in ((ids, mask), (wide_ids, wide_mask)):
        sums = sums_for(described)
        with torch.no_grad(), collecting(model, described, sums):
            batch_mask(real)
            model(input_ids=batch, attention_mask=real.long(), use_cache=False)
        found.append(sums.tensors())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-12, atol=1e-12)
    assert found[0]["moments.0"][:, 0].sum() == TOP_K * mask.sum()


def test_padding_that_overflows_leaves_no_trace(tmp_path):
    # Half precision may overflow at padding, where nothing keeps the values small.
    checkpoint = tiny_checkpoint(tmp_path, "olmoe")
    described = load_model_index(str(tmp_path))
    experts = checkpoint.model.get_submodule("model.layers.0.mlp.experts")
    hidden = torch.ones(3, 16)
    hidden[2] = torch.inf
    index, weights = torch.tensor([[1, 4], [4, 0], [4, 6]]), torch.full((3, 2), 0.25)
    sums = sums_for(described)
    with torch.no_grad(), collecting(checkpoint.model, described, sums):
        batch_mask(torch.tensor([True, True, False]))
        experts(hidden, index, weights)
    assert sums.moments_EM[0].isfinite().all()
    assert sums.vectors_ED[0].isfinite().all()
    assert sums.moments_EM[0][:, 0].tolist() == [1, 1, 0, 0, 2, 0, 0]


def test_experts_of_another_process_are_left_to_it(tmp_path):
    # Under expert parallelism an id beyond the last local expert marks a pair of another rank.
    checkpoint = tiny_checkpoint(tmp_path, "olmoe")
    described = load_model_index(str(tmp_path))
    experts = checkpoint.model.get_submodule("model.layers.1.mlp.experts")
    hidden, weights = torch.ones(2, 16), torch.tensor([[0.5, 0.0], [0.25, 0.125]])
    sums = sums_for(described)
    with torch.no_grad(), collecting(checkpoint.model, described, sums):
        output = experts(hidden, torch.tensor([[2, 7], [2, 5]]), weights)
        expected = experts(hidden[:1], torch.tensor([[2]]), torch.tensor([[0.5]]))
    torch.testing.assert_close(output[:1], expected)
    assert sums.moments_EM[1][:, 0].tolist() == [0, 0, 3, 0, 0, 1, 0]


def test_a_token_whose_gates_sum_to_zero_has_renormalised_gate_zero(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path, "olmoe")
    described = load_model_index(str(tmp_path))
    experts = checkpoint.model.get_submodule("model.layers.0.mlp.experts")
    sums = sums_for(described)
    with torch.no_grad(), collecting(checkpoint.model, described, sums):
        experts(torch.ones(1, 16), torch.tensor([[3, 5]]), torch.zeros(1, 2))
    assert sums.moments_EM[0].isfinite().all()
    column = MOMENT_COLUMNS.index("renormalized_g1_f0")
    assert sums.moments_EM[0][:, column].abs().sum() == 0


@pytest.mark.parametrize("before", ["eager", "grouped_mm"])
def test_implementation_is_restored(tmp_path, before):
    checkpoint = tiny_checkpoint(tmp_path, "mixtral")
    described, model = load_model_index(str(tmp_path)), checkpoint.model
    model.set_experts_implementation(before)
    with collecting(model, described, sums_for(described)):
        assert model.config._experts_implementation == IMPLEMENTATION
    assert model.config._experts_implementation == before
    with (
        contextlib.suppress(ZeroDivisionError),
        collecting(model, described, sums_for(described)),
    ):
        raise ZeroDivisionError
    assert model.config._experts_implementation == before
    with pytest.raises(ValueError, match="outside"):
        batch_mask(None)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_backward_counts_nothing_twice(tmp_path, reentrant):
    checkpoint = tiny_checkpoint(tmp_path, "olmoe")
    described, model = load_model_index(str(tmp_path)), checkpoint.model
    ids, mask = padded_batch()
    plain = sums_for(described)
    with torch.no_grad(), collecting(model, described, plain):
        batch_mask(mask)
        model(input_ids=ids, attention_mask=mask.long(), use_cache=False)

    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    for layer in model.model.layers:
        layer.training = True  # not its children: no dropout, no jitter
    calls = []
    experts = model.get_submodule("model.layers.1.mlp.experts")
    experts.register_forward_pre_hook(lambda *_: calls.append(1))
    inputs = model.get_input_embeddings()(ids).detach().requires_grad_()
    checkpointed = sums_for(described)
    with collecting(model, described, checkpointed):
        batch_mask(mask)
        output = model(inputs_embeds=inputs, attention_mask=mask.long(), use_cache=False)
        output.logits.square().mean().backward()
    assert len(calls) == 2  # so something was recomputed
    for name, tensor in plain.tensors().items():
        assert torch.equal(checkpointed.tensors()[name], tensor)


# --- batches, halves, interruptions ----------------------------------------------------------


def test_batch_sizes_agree(tmp_path):
    described = describe(tmp_path / "model", "qwen3_moe")
    tables = {}
    for size in (1, 2, 5, 64):
        store = StatsStore(tmp_path / f"stats-{size}")
        run = drain(calibrate(described, make_sequences(), make_settings(batch_size=size), store))
        tables[size] = table_of(run)
    for size in (2, 5, 64):
        assert tables[size]["num_tokens"].equals(tables[1]["num_tokens"])
        np.testing.assert_allclose(tables[size].to_numpy(), tables[1].to_numpy(), rtol=1e-6)


def test_two_halves_cut_at_a_batch_boundary_make_the_whole(tmp_path):
    described = describe(tmp_path / "model", "mixtral")
    whole, store = make_sequences(), StatsStore(tmp_path / "halves")
    once = drain(calibrate(described, whole, make_settings(), StatsStore(tmp_path / "whole")))
    halves = [
        drain(calibrate(described, part_of(whole, *span), make_settings(), store))
        for span in ((0, 3), (3, None))
    ]
    merged = merge_runs(halves, tmp_path / "halves")
    np.testing.assert_allclose(table_of(merged), table_of(once), rtol=1e-12)
    np.testing.assert_allclose(read_vectors(merged), read_vectors(once), rtol=1e-11, atol=1e-13)
    assert merged.manifest.num_tokens == once.manifest.num_tokens == sum(LENGTHS)


def test_a_closed_calibration_resumes_with_the_same_bits(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    once = drain(
        calibrate(described, make_sequences(), make_settings(), StatsStore(tmp_path / "once"))
    )
    store = StatsStore(tmp_path / "twice")
    task = calibrate(described, make_sequences(), make_settings(), store)
    done = [next(task).done for _ in range(3)]  # loading, then two of three batches
    task.close()
    assert done == [0, 9 + 5 + 7, 9 + 5 + 7 + 3 + 9 + 2]
    assert store.runs() == []
    assert all(".partial" in path.name for path in store.target.iterdir())

    steps = []
    resumed = drain(calibrate(described, make_sequences(), make_settings(), store), steps.append)
    assert [step.note for step in steps if step.note] == ["resumed after 35 of 41 tokens"]
    assert [step.done for step in steps] == [0, 35, 41]
    assert_same_numbers(resumed, once)
    assert not list(store.target.glob("*.partial"))


def test_without_resume_an_interrupted_run_starts_anew(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    store = StatsStore(tmp_path / "stats")
    task = calibrate(described, make_sequences(), make_settings(), store)
    next(task), next(task)
    task.close()
    steps = []
    task = calibrate(described, make_sequences(), make_settings(), store, resume=False)
    run = drain(task, steps.append)
    assert [step.done for step in steps] == [0, 21, 35, 41]
    assert table_of(run)["num_tokens"].sum() == 3 * TOP_K * sum(LENGTHS)


def test_an_exception_inside_a_batch_keeps_the_last_saved_state(tmp_path):
    # The sums may hold half a batch, so they are not saved; nothing passes for finished.
    described = describe(tmp_path / "model", "olmoe")
    store = StatsStore(tmp_path / "stats")
    task = calibrate(described, make_sequences(), make_settings(), store)
    next(task), next(task)
    with pytest.raises(KeyboardInterrupt):
        task.throw(KeyboardInterrupt)
    assert store.runs() == []
    steps = []
    drain(calibrate(described, make_sequences(), make_settings(), store), steps.append)
    assert [step.done for step in steps] == [0, 21, 35, 41]


CHILD = """
import sys, time
import numpy as np, torch
torch.set_num_threads(1)
from analysis.calibration import run
from analysis.corpora import TokenSequences
from analysis.errors import UserError
from analysis.model import load_model_index
from analysis.store import StatsStore
from pathlib import Path

model, stats, rows, stop_after = sys.argv[1], Path(sys.argv[2]), eval(sys.argv[3]), int(sys.argv[4])
run._SAVE_EVERY_SECONDS = 0.0
rows = tuple(np.array(row, dtype=np.int32) for row in rows)
sequences = TokenSequences("letters.jsonl", rows, len(rows), 0)
settings = run.CalibrationSettings(seq_len=9, batch_size=3, device="cpu")
try:
    for step in run.calibrate(load_model_index(model), sequences, settings, StatsStore(stats)):
        if step.done >= stop_after:
            print("stopped at", step.done, flush=True)
            time.sleep(600)
except UserError as error:
    print(type(error).__name__, error, flush=True)
"""


def start_child(model_path, stats, *, stop_after):
    rows = json.dumps([row.tolist() for row in make_sequences().rows])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(model_path), str(stats), rows, str(stop_after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_after_kill_9_the_next_run_finishes_with_the_same_bits(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    once = drain(
        calibrate(described, make_sequences(), make_settings(), StatsStore(tmp_path / "once"))
    )
    store = StatsStore(tmp_path / "killed")
    with start_child(tmp_path / "model", store.target, stop_after=30) as child:
        assert child.stdout.readline() == "stopped at 35\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert store.runs() == []
    left = list(store.target.rglob("*"))
    assert any(path.suffix == ".safetensors" for path in left)
    assert all(".partial" in str(path.relative_to(store.target)) for path in left)

    steps = []
    run = drain(calibrate(described, make_sequences(), make_settings(), store), steps.append)
    assert steps[1].note == "resumed after 35 of 41 tokens"
    assert_same_numbers(run, once)
    assert not list(store.target.glob("*.partial"))


def test_a_second_process_is_told_that_the_run_is_being_made(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    store = StatsStore(tmp_path / "stats")
    task = calibrate(described, make_sequences(), make_settings(), store)
    next(task), next(task)
    with start_child(tmp_path / "model", store.target, stop_after=0) as child:
        answer = child.stdout.read()
    assert answer.startswith("StatsError model-letters-")
    assert "being calibrated by another process" in answer
    assert table_of(drain(task))["num_tokens"].sum() == 3 * TOP_K * sum(LENGTHS)


def test_a_run_in_the_cache_is_returned_at_once(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    store = StatsStore(tmp_path / "stats")
    first = drain(calibrate(described, make_sequences(), make_settings(), store))
    steps = []
    other = make_settings(batch_size=1)
    again = drain(calibrate(described, make_sequences(), other, store), steps.append)
    assert [step.phase for step in steps] == ["cached"]
    assert again == first
    assert again.manifest.made["batch_size"] == 3


def test_a_damaged_run_of_the_same_name_is_reported_before_the_work(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    store = StatsStore(tmp_path / "stats")
    run = drain(calibrate(described, make_sequences(), make_settings(), store))
    (run.path / "manifest.json").write_text("{")
    task = calibrate(described, make_sequences(), make_settings(), store)
    with pytest.raises(StatsError, match="delete"):
        next(task)


# --- what a run is ----------------------------------------------------------------------------


def test_digest_covers_what_changes_the_numbers(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
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
        plan_run(describe(tmp_path / "other", "olmoe", seed=1), make_sequences(), make_settings()),
    ]
    digests = {plan.digest, *(other.digest for other in changed)}
    assert len(digests) == 1 + len(changed)
    same = plan_run(described, make_sequences(), make_settings(batch_size=7, dtype="float32"))
    assert same.digest == plan.digest
    assert plan.run_id == f"model-letters-{plan.digest[:8]}"


def test_the_manifest_says_how_the_run_was_made(tmp_path):
    described = describe(tmp_path / "model", "qwen3_moe")
    run = drain(
        calibrate(described, make_sequences(), make_settings(), StatsStore(tmp_path / "stats"))
    )
    assert run.manifest.settings == {"seq_len": 9, "seed": 42, "dtype": "float32"}
    made = run.manifest.made
    assert made["device"] == "cpu"
    assert set(made["versions"]) == {"python", "torch", "transformers", "numpy"}
    assert made["peak_memory_bytes"] > 10_000_000
    assert made["tokens_per_second"] > 0
    assert [layer.index for layer in run.manifest.model.layers] == [0, 2, 3]
    (corpus,) = run.manifest.corpora
    assert (corpus.num_sequences, corpus.num_tokens, corpus.num_padded) == (7, 41, 19)


# --- bad input --------------------------------------------------------------------------------


def test_values_that_are_no_numbers_end_the_run_with_nothing_stored(tmp_path):
    model = tiny_model("olmoe")
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.experts").down_proj[:] = torch.inf
    model.save_pretrained(tmp_path / "model")
    described, store = load_model_index(str(tmp_path / "model")), StatsStore(tmp_path / "stats")
    with pytest.raises(StatsError, match=r"no finite numbers in float32"):
        drain(calibrate(described, make_sequences(), make_settings(), store))
    assert store.runs() == []
    assert all(".partial" in path.name for path in store.target.iterdir())


def test_a_missing_tensor_is_named(tmp_path):
    described = describe(tmp_path / "model", "olmoe", shards=1)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    described = load_model_index(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight"):
        drain(calibrate(described, make_sequences(), make_settings(), StatsStore(tmp_path / "s")))


def test_tokens_of_another_vocabulary_are_refused(tmp_path):
    described = describe(tmp_path / "model", "olmoe")
    rows = (np.array([3, VOCAB], dtype=np.int32),)
    sequences = TokenSequences("other.jsonl", rows, 1, 0)
    with pytest.raises(CorpusError, match=rf"token id {VOCAB}, but model has {VOCAB} tokens"):
        next(calibrate(described, sequences, make_settings(), StatsStore(tmp_path / "stats")))


def test_a_checkpoint_without_a_tokenizer_says_so(tmp_path):
    # transformers would make one with two tokens in it.
    described = describe(tmp_path / "model", "olmoe")
    with pytest.raises(CheckpointError, match=r"model has no tokenizer .* corpus of input_ids"):
        load_tokenizer(described)


def test_unknown_device_and_element_type_are_refused(tmp_path):
    described = describe(tmp_path / "model", "olmoe", dtype=torch.bfloat16)
    assert resolve_dtype("auto", described) == "bfloat16"
    with pytest.raises(CheckpointError, match=r"'int8'; choose one of auto, float32"):
        resolve_dtype("int8", described)
    with pytest.raises(CheckpointError, match=r"'warp' cannot be used here; try cpu"):
        resolve_device("warp")
