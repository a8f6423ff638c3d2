"""Verification layer by layer: the report, and the bits, of the whole models."""

import errno
import json
import mmap
import os
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from functools import reduce

import psutil
import pytest
import torch
from exports import (
    accept_changes,
    edit_tensors,
    export,
    failed,
    keeping,
    shards_of,
    tensors_of,
    uneven,
)

from analysis.calibration import skeleton, weight_memory
from analysis.calibration.skeleton import Skeleton
from analysis.checkpoint.index import INDEX_NAME
from analysis.drain import drain
from analysis.errors import ExportError, UnsupportedModelError
from analysis.model.opening import load_model_index
from analysis.progress import added, cost
from builders import edit_json
from builders.fp8 import write_fp8_pair
from builders.repairs import repaired, token_sequences
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.plan.plan import fit_plan, with_top_k
from pruning.records.repair_files import with_repair_files
from pruning.surgery.forward_checks import random_tokens
from pruning.surgery.layer_memory import layer_memory
from pruning.surgery.running import DoesNotLoad, run_whole
from pruning.surgery.streamed_run import run_in_step
from pruning.surgery.verify import expected_verification, verify_export
from pruning.surgery.verify_costs import ForwardPass, Precision, Sides, costs_in_step, run_costs

SINGLE = Precision("float32", "float32")


_EXTRA = 1 << 29  # bytes beside the weights


def available(monkeypatch, nbytes):
    """Let so much memory be free."""
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(nbytes))


def saved(name, path, dtype=torch.bfloat16):
    tiny_model(BY_NAME[name]).to(dtype).save_pretrained(path)
    return load_model_index(str(path))


def reports(out, source, **options):
    """Of the whole models, and layer by layer."""
    given = {"source": source.checkpoint.path, **options}
    return [drain(verify_export(out, stream_layers=way, **given)) for way in (False, True)]


def same_reports(out, source, **options):
    whole, streamed = reports(out, source, **options)
    assert whole.ok, whole.checks
    assert whole.level == streamed.level == "logits"
    # Details name the dtypes and the largest difference of logits.
    assert whole.checks == streamed.checks
    assert whole.max_abs_diff == streamed.max_abs_diff
    return streamed


def run_streamed(one, ids, **options):
    (outcome,) = yield from run_in_step([one], ids, **options)
    return outcome


def run(way, model, precision, plan=None, **options):
    one = ForwardPass(model, precision, plan)
    return drain(way(one, random_tokens(model, 64), **options)).logits


# Experts in tensors of their own; stacked, transposed and with biases; with groups, shared experts
# and dense layers; tied embeddings.
@pytest.mark.parametrize(
    "name",
    ["olmoe", "gpt_oss", "deepseek_v3-groups", pytest.param("qwen3_moe", marks=pytest.mark.slow)],
)
def test_streamed_logits_are_those_of_the_whole_model_bit_for_bit(tmp_path, name):
    source = saved(name, tmp_path / "source")
    plan = uneven(source)
    export(source, plan, tmp_path / "out", max_shard_bytes=30_000)
    exported = load_model_index(str(tmp_path / "out"))
    cases = [(exported, Precision(), None), (exported, SINGLE, None)]
    for model, precision, of in (*cases, (source, SINGLE, plan)):
        whole, streamed = (run(way, model, precision, of) for way in (run_whole, run_streamed))
        assert torch.equal(whole, streamed)
        assert whole.dtype == streamed.dtype
        for at_once in (1, 2):
            assert torch.equal(whole, run(run_streamed, model, precision, of, at_once=at_once))
    # It tells plans apart, in each layer.
    for layer in source.layers:
        others = {**plan.kept, layer.index: tuple(range(layer.num_experts))}
        other = run(run_streamed, source, SINGLE, replace(plan, kept=others))
        assert not torch.equal(other, streamed)
    same_reports(tmp_path / "out", source)


# Experts in tensors of their own; stacked; with dense layers; quantised.
@pytest.mark.parametrize("name", ["olmoe", "gpt_oss", "deepseek_v3-groups", "fp8"])
@pytest.mark.parametrize("least", [1, 1 << 18])  # bytes of tensors that the heap does not have
def test_runs_do_what_they_state(tmp_path, name, least, monkeypatch):
    monkeypatch.setattr(weight_memory, "_LEAST", least)
    if name == "fp8":
        model = load_model_index(str(write_fp8_pair(tmp_path, torch.bfloat16, torch.float32)[0]))
    else:
        model = saved(name, tmp_path / "source")
    ids = random_tokens(model, 64)
    for precision in Precision(), SINGLE:
        one = ForwardPass(model, precision)
        whole, stated = run_whole(one, ids), run_costs(model, 64, precision.computed).total
        assert reduce(added, whole, {}) == pytest.approx(stated, rel=1e-6)
        for at_once in 0, 2:
            (costs,) = costs_in_step([one], 64, at_once=at_once)
            steps = run_in_step([one], ids, at_once=at_once)
            assert reduce(added, steps, {}) == pytest.approx(costs.total, rel=1e-6)


@pytest.mark.parametrize("least", [1, 1 << 18])
def test_models_in_step_share_memory_and_compute_what_each_does_alone(tmp_path, least, monkeypatch):
    source = saved("olmoe", tmp_path / "source")
    plan = fit_plan(uneven(source), source)
    export(source, plan, tmp_path / "out")
    monkeypatch.setattr(weight_memory, "_LEAST", least)
    exported = load_model_index(str(tmp_path / "out"))
    passes = [*Sides(exported, source, plan).passes, ForwardPass(exported)]
    costs = list(costs_in_step(passes, 64, at_once=0))
    assert [bool(one.stacks) for one in costs] == [True, False, False]
    ids, steps, outcomes = random_tokens(source, 64), [], []

    def running():
        outcomes.extend((yield from run_in_step(passes, ids, at_once=0)))

    for step in running():
        steps.append(step)
    assert reduce(added, steps, {}) == pytest.approx(
        reduce(added, (one.total for one in costs)), rel=1e-6
    )
    # All read a layer before one reads the next: float32 of both models, then bfloat16.
    kinds = [kind for step in steps for kind in step if kind.startswith("read")]
    turn = ["read float32", "read float32", "read"]
    assert kinds == turn * (len(kinds) // 3)
    for one, outcome in zip(passes, outcomes, strict=True):
        assert torch.equal(outcome.logits, drain(run_whole(one, ids)).logits)
    assert not torch.equal(
        outcomes[0].logits, drain(run_whole(ForwardPass(source, SINGLE), ids)).logits
    )


def test_what_cannot_be_loaded_keeps_no_other_model_from_its_end(tmp_path):
    model = saved("olmoe", tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    edit_json(tmp_path / "other/config.json", vocab_size=90)
    other = load_model_index(str(tmp_path / "other"))
    ids = random_tokens(model, 64)
    failed, ran = drain(run_in_step([ForwardPass(other), ForwardPass(model)], ids))
    assert isinstance(failed, DoesNotLoad)
    assert torch.equal(ran.logits, drain(run_whole(ForwardPass(model), ids)).logits)


@pytest.mark.parametrize(("tokens", "times"), [(7, 16.0), (56, 2.0), (112, 1.0), (448, 1.0)])
def test_experts_that_see_few_tokens_cost_as_those_that_see_32(checkpoint, tokens, times):
    """2 of 7 experts per token: of 7 tokens an expert sees 2, of 56 it sees 16."""
    model = load_model_index(str(checkpoint("olmoe").path))
    costs = run_costs(model, tokens)
    assert {layer.top_k / layer.num_experts for layer in model.layers} == {2 / 7}
    around, active = (of[1] for of in (costs.layers.around, costs.layers.active))
    assert 0 < around < active
    wanted = cost("multiply", tokens * (around + times * (active - around)))
    assert costs.running(1) == {"multiply": pytest.approx(wanted)}


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system keeps its own pages")
def test_what_is_read_again_soon_stays_in_the_page_cache(tmp_path, monkeypatch):
    """What another model reads next; and all of a model that fits there beside what runs."""
    source = saved("olmoe", tmp_path / "source")
    plan = keeping(source, (1, 3, 4))
    export(source, plan, tmp_path / "out")
    given_up = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: given_up.append(given))
    exported = load_model_index(str(tmp_path / "out"))
    compared = Sides(exported, source, plan).passes
    stored = len(exported.checkpoint.tensors), len(source.checkpoint.tensors)
    ids = random_tokens(source, 64)
    drain(run_in_step((ForwardPass(exported),), ids))
    assert not given_up
    monkeypatch.setattr(skeleton, "free_memory", lambda: 0)
    for passes, counts in (
        ((ForwardPass(exported),), stored[:1]),
        (compared, stored),
        ((*compared, ForwardPass(exported)), stored),  # the export is read twice
    ):
        given_up.clear()
        drain(run_in_step(passes, ids))
        assert len(given_up) == sum(counts)


@pytest.mark.parametrize("way", [True, False])
def test_lack_of_memory_says_nothing_of_an_export(tmp_path, way, monkeypatch):
    source = saved("olmoe", tmp_path / "source")
    export(source, keeping(source, (1, 3, 4)), tmp_path / "out")
    monkeypatch.setattr(weight_memory, "_LEAST", 1)
    given = {"level": "logits", "source": source.checkpoint.path, "stream_layers": way}
    running, asked = verify_export(tmp_path / "out", **given), mmap.mmap

    def none_left(file, *sizes, **options):
        if file == -1:  # of no file
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return asked(file, *sizes, **options)

    def no_tensor(*_sizes, **_options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    if way:
        monkeypatch.setattr(mmap, "mmap", none_left)
    else:
        monkeypatch.setattr(torch.nn.functional, "embedding", no_tensor)
    with pytest.raises(ExportError, match=r"ran out while a model was run; .*--level bytes"):
        drain(running)


def test_a_verification_does_what_it_states(tmp_path):
    source = saved("olmoe", tmp_path / "source")
    export(source, keeping(source, (1, 3, 4)), tmp_path / "out")
    for level, way in ("load", True), ("logits", True), ("logits", False):
        given = {"level": level, "source": source.checkpoint.path, "stream_layers": way}
        stated, _, _ = expected_verification(tmp_path / "out", tokens=40, **given)
        steps = list(verify_export(tmp_path / "out", tokens=40, **given))
        assert all(step.whole.total == stated for step in steps)
        assert {kind for kind, amount in steps[-1].whole.done.items() if amount} == stated.keys()
        assert steps[-1].done == pytest.approx(steps[-1].total, rel=0.15)  # headers are no weights


def test_a_repaired_export(tmp_path):
    source, stats = saved("olmoe", tmp_path / "source", torch.float32), tmp_path / "stats"
    _, record = repaired(source, uneven(source), stats, token_sequences(60, 16))
    plan = replace(fit_plan(uneven(source), source), repair=record.reference)
    export(source, with_repair_files(plan, [stats]), tmp_path / "out")
    report = same_reports(tmp_path / "out", source, directories=(stats,))
    assert "masked and what stays repaired" in report.checks[-1].detail


@pytest.mark.parametrize("mode", ["uniform", "per-layer"])
def test_an_export_of_neurons_in_float64(neuron_source, width_export, mode):
    case = BY_NAME["olmoe"]
    report = same_reports(width_export(case, mode).path, neuron_source(case).described)
    assert "in float64," in report.checks[-1].detail


@pytest.mark.parametrize("dequantise", [False, True])
def test_fp8(tmp_path, dequantise):
    path, _ = write_fp8_pair(tmp_path, torch.bfloat16, torch.float32)
    source = load_model_index(str(path))
    plan = keeping(source, (0, 2, 5))
    export(source, plan, tmp_path / "out", dequantise=dequantise)
    same_reports(tmp_path / "out", source)
    precision = Precision("bfloat16" if dequantise else "float32", "float32")
    for model, of in (source, plan), (load_model_index(str(tmp_path / "out")), None):
        whole, blocks = (run(run_streamed, model, precision, of, at_once=n) for n in (0, 2))
        assert torch.equal(whole, blocks)


def test_fewer_experts_per_token(tmp_path):
    source = saved("olmoe", tmp_path / "source")
    export(source, with_top_k(keeping(source, (1, 3, 4)), source, 1), tmp_path / "out")
    report = same_reports(tmp_path / "out", source)
    assert "1 experts per token" in report.checks[-1].detail


NORM = "model.norm.weight"


def surplus(out):
    name = "model.surplus.weight"
    index = json.loads((out / INDEX_NAME).read_text())["weight_map"]
    edit_tensors(shards_of(out)[0], lambda held: held | {name: torch.zeros(3)})
    edit_json(out / INDEX_NAME, weight_map=index | {name: shards_of(out)[0].name}, metadata={})


def not_finite(out):
    shard = next(shard for shard in shards_of(out) if NORM in tensors_of(shard))
    edit_tensors(shard, lambda held: held | {NORM: torch.full((16,), torch.nan)})


# What is done to an export -> what is said of it without the source, by layers.
DAMAGES = [
    (surplus, "transformers reports 1 unexpected keys: model.surplus.weight"),
    (not_finite, "logits of 128 tokens are not all finite"),
    (lambda out: edit_json(out / "config.json", vocab_size=90), "cannot load the export"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_damage_is_found_by_layers_too(tmp_path, damage, words):
    source = saved("olmoe", tmp_path / "source", torch.float32)
    export(source, (1, 3, 4), tmp_path / "out", max_shard_bytes=30_000)
    damage(tmp_path / "out")
    accept_changes(tmp_path / "out")
    problems = failed(tmp_path / "out", stream_layers=True)
    assert list(problems) == ["load"]
    assert words in problems["load"]


@pytest.mark.parametrize("name", ["mlp.gate.e_score_correction_bias", "input_layernorm.weight"])
def test_a_tensor_that_is_gone_is_named_by_layers_too(tmp_path, name):
    source = saved("deepseek_v3", tmp_path / "source", torch.float32)
    export(source, (1, 3, 4), tmp_path / "out")
    (shard,) = shards_of(tmp_path / "out")
    gone = f"model.layers.1.{name}"  # a buffer, and a weight
    edit_tensors(shard, lambda held: {key: held[key] for key in held if key != gone})
    accept_changes(tmp_path / "out")
    problems = failed(tmp_path / "out", stream_layers=True)
    assert gone in problems["load"]


def test_other_logits_are_found(tmp_path, monkeypatch):
    source = saved("olmoe", tmp_path / "source")
    export(source, (1, 3, 4), tmp_path / "out")
    # As if the plan meant something else to the writer and to the check of bytes.
    masked_as = lambda plan, layer: replace(plan, kept={layer: (0, 3, 4)})  # noqa: E731
    monkeypatch.setattr("pruning.plan.plan.PruningPlan.of_layer", masked_as)
    assert (
        "logits differ by"
        in failed(tmp_path / "out", source=source.checkpoint.path, stream_layers=True)["logits"]
    )


def test_a_model_whose_layers_do_not_run_alone(tmp_path, monkeypatch):
    source = saved("glm_moe_dsa", tmp_path / "source", torch.float32)
    export(source, uneven(source), tmp_path / "out")
    given = {"source": source.checkpoint.path, "stream_layers": True}
    with pytest.raises(UnsupportedModelError, match=r"cannot be streamed .* or with --level bytes"):
        drain(verify_export(tmp_path / "out", level="logits", **given))
    with pytest.raises(ExportError, match="runs no layers; leave --stream-layers out"):
        drain(verify_export(tmp_path / "out", level="bytes", stream_layers=True))
    # Unless a level was asked for, the whole is run if it fits.
    report = drain(verify_export(tmp_path / "out", **given))
    assert report.ok and report.level == "logits"
    assert "cannot be streamed" in report.reason and "as a whole: " in report.reason
    available(monkeypatch, _EXTRA + source.num_params * 2)
    report = drain(verify_export(tmp_path / "out", **given))
    assert report.ok and report.level == "bytes"
    assert "not checked: whether it loads, and its logits, as " in report.reason


def test_layers_are_proposed_where_the_whole_does_not_fit(tmp_path, monkeypatch):
    source = saved("olmoe", tmp_path / "source", torch.float32)
    export(source, (1, 3, 4), tmp_path / "out")
    # Less than the whole in float32, more than the export, or than one of three layers.
    available(monkeypatch, _EXTRA + source.num_params * 4)
    given = {"source": source.checkpoint.path}
    whole, streamed = reports(tmp_path / "out", source)
    assert whole.level == "load"
    assert "--stream-layers reaches 'logits' with " in whole.reason
    assert streamed.ok and streamed.level == "logits"
    assert "of memory for one layer at a time" in streamed.reason
    available(monkeypatch, _EXTRA)
    report = drain(verify_export(tmp_path / "out", stream_layers=True, **given))
    assert report.level == "bytes"


def test_libraries_are_there_when_free_memory_is_asked_for(tmp_path, monkeypatch):
    source = saved("olmoe", tmp_path / "source")
    export(source, keeping(source, (1, 3, 4)), tmp_path / "out")
    runs, asked = "pruning.surgery.streamed_run", []

    def free():
        asked.append(runs in sys.modules)
        return 1 << 40

    for place in "verify", "layer_memory":
        monkeypatch.setattr(f"pruning.surgery.{place}.free_memory", free)
    for level in None, "logits":
        monkeypatch.delitem(sys.modules, runs, raising=False)
        given = {"level": level, "source": source.checkpoint.path, "stream_layers": True}
        expected_verification(tmp_path / "out", **given)
    assert asked
    assert all(asked)


def test_a_layer_that_does_not_fit_runs_in_blocks_of_experts(tmp_path, monkeypatch):
    source = saved("olmoe", tmp_path / "source", torch.float32)
    export(source, (1, 3, 4), tmp_path / "out")
    read, load = set(), Skeleton.load_experts
    monkeypatch.setattr(
        Skeleton, "load_experts", lambda *of: (read.add((of[1], len(of[2]))), load(*of))
    )
    # A layer has 7 experts of 3 x 16 x 24 weights and 936 others, the embeddings have 1,024; a
    # weight takes 4 bytes, and a quarter more while it loads.
    whole = layer_memory(source, 4)
    assert (whole.nbytes, whole.at_once) == (_EXTRA + 5 * (7 * 1152 + 936), 0)
    available(monkeypatch, whole.nbytes - 1)
    blocks = layer_memory(source, 4)
    assert (blocks.nbytes, blocks.at_once) == (_EXTRA + 5 * (1152 + 1024), 1)
    report = drain(
        verify_export(tmp_path / "out", source=source.checkpoint.path, stream_layers=True)
    )
    assert report.ok and report.level == "logits"
    assert read == {(layer.index, 1) for layer in source.layers}
