"""Prediction heads (MTP): what cannot be run, and exports that prune by their statistics."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from calibrations import calibrated
from exports import verified
from safetensors.torch import load_file, save_file

from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import ExportError, UnsupportedModelError
from analysis.model.head_parts import runnable_heads
from analysis.model.heads import prediction_heads
from analysis.model.opening import load_model_index
from analysis.progress import cost
from analysis.stats.store import StatsStore
from builders import edit_json
from families.headed import HEADED, ROUTED, SEQUENCES, SPARSE, WITH_HEADS, Headed, Made, heads_of
from families.settings import HIDDEN
from families.test_quantised import to_fp8
from pruning import Model
from pruning.plan.copies import plan_for_copy
from pruning.requests.model import ExportRequest
from pruning.surgery.head_ranking import WeighedHeads, head_ranking
from pruning.surgery.heads import why_not_pruned
from pruning.surgery.manifest import read_manifest
from pruning.tasks.export import dry_export, export_run, is_finished_export


def without(name):
    def change(held):
        return {key: tensor for key, tensor in held.items() if name not in key}

    return change


def rewrite(made, held):
    """Other tensors for the heads of a checkpoint."""
    save_file({key: t.contiguous() for key, t in held.items()}, made.path / "heads.safetensors")
    index = made.path / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    trunk = {key: file for key, file in where.items() if file != "heads.safetensors"}
    edit_json(index, weight_map=trunk | dict.fromkeys(held, "heads.safetensors"))


def widened(held):
    return {k: t[:, :-1].contiguous() if "q_proj" in k else t for k, t in held.items()}


# What is done to the tensors of a head -> what the refusal says.
REFUSED = {
    "no head": (lambda held: {}, "has no prediction head with experts"),
    "no experts": (without(".mlp."), "has no prediction head with experts"),
    "no projection": (without("eh_proj"), "has no tensor eh_proj or fc"),
    "a part more": (
        lambda held: held | {"model.layers.3.gate.weight": torch.ones(3)},
        "model.layers.3.gate.weight does in it is not known",
    ),
    "other shapes": (widened, "no layer of source is built like its layer 3"),
    "other widths": (
        lambda held: held | {"model.layers.3.eh_proj.weight": torch.ones(HIDDEN, HIDDEN)},
        "its norms and its projection do not fit each other",
    ),
    "a scale": (
        lambda held: held | {"model.layers.3.eh_proj.weight_scale_inv": torch.ones(1, 1)},
        "eh_proj.weight is quantised",
    ),
    "eight bits": (
        lambda held: {
            k: t.to(torch.float8_e4m3fn) if "eh_proj" in k else t for k, t in held.items()
        },
        "eh_proj.weight is quantised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_heads_that_cannot_be_run_are_refused_before_anything_is_loaded(glm, name):
    change, message = REFUSED[name]
    rewrite(glm, change(glm.held))
    with pytest.raises(UnsupportedModelError, match=message):
        runnable_heads(load_model_index(str(glm.path)))


def test_steps_that_share_one_projection_are_refused(built, tmp_path):
    # Qwen's second layer would be another step, entered by the same projection.
    made = Made(built, HEADED[3], tmp_path)
    again = {
        n.replace("layers.0", "layers.1"): t.clone()
        for n, t in made.held.items()
        if "layers.0" in n
    }
    rewrite(made, made.held | again)
    with pytest.raises(UnsupportedModelError, match="several layers share one projection"):
        runnable_heads(load_model_index(str(made.path)))


def test_layers_that_hand_on_more_are_refused(built, tmp_path):
    made = Made(built, Headed("glm_moe_dsa", (2,), SPARSE), tmp_path)
    with pytest.raises(
        UnsupportedModelError, match=r"head model\.layers\.3 cannot be run: .*hidden"
    ):
        calibrated(made.described, tmp_path, SEQUENCES, groups=WITH_HEADS)


@pytest.mark.parametrize("criterion", ["reap", "frequency", "mone", "damage", "aimer"])
def test_heads_are_pruned_by_what_the_plan_was_ranked_by(glm, tmp_path, criterion):
    stats, out = tmp_path / "stats", tmp_path / "out"
    run = calibrated(glm.described, stats, SEQUENCES, groups=(*WITH_HEADS, "damage"))
    model = Model(str(glm.path), stats_dir=stats)
    corpus = () if criterion == "aimer" else "letters.jsonl"
    plan = model.plan(criterion, corpus, sparsity="40%")
    model.export(plan, out, mtp="prune")
    heads = read_manifest(out).heads
    ((layers),) = heads.kept.values()
    # sum g |f| / n; heads have no damage of their own, so REAP stands in for it.
    table = heads_of(run, glm.described)
    reap = table["applied_g1_f1"] / table["num_tokens"].clip(lower=1)
    scores = {"reap": reap, "damage": reap, "frequency": table["num_tokens"]}
    if criterion in scores:
        order = np.argsort(-scores[criterion].to_numpy(), kind="stable")
        assert list(layers[3]) == sorted(order[: len(plan.kept[1])].tolist())
    runs = () if criterion == "aimer" else (run.manifest.run_id,)
    said = {"damage": "reap"}.get(criterion, criterion)
    assert (heads.criterion, heads.runs) == (said, runs)
    assert f"pruned by {get_criterion(said).label}" in (out / "README.md").read_text()
    verified(out, level="logits", source=glm.path)
    (again,) = runnable_heads(load_model_index(str(out)))  # a head still, of fewer experts
    assert again.layers[0].experts.num_experts == len(layers[3])


def test_heads_that_the_plans_runs_did_not_measure_are_ranked_by_weights(glm, tmp_path):
    calibrated(glm.described, tmp_path / "stats", SEQUENCES, groups=ROUTED)
    model = Model(str(glm.path), stats_dir=tmp_path / "stats")
    model.export(model.plan("reap", "letters.jsonl", sparsity="40%"), tmp_path / "out", mtp="prune")
    heads = read_manifest(tmp_path / "out").heads
    assert (heads.criterion, heads.runs) == ("aimer", ())


def test_the_weights_of_heads_are_work_of_the_export(glm, tmp_path):
    plan = Model(str(glm.path)).plan("aimer", sparsity="40%")
    words = {"plan": plan.to_dict(), "out": tmp_path / "out", "mtp": "prune"}
    request, steps, dry = ExportRequest(model=str(glm.path), **words), [], []
    planned, is_there = drain(dry_export(request, glm.described), dry.append)
    assert not (is_there or (tmp_path / "out").exists())
    drain(export_run(request), steps.append)
    assert planned.heads == read_manifest(tmp_path / "out").heads
    assert [step.phase for step in dry] == ["reading weights"] * len(dry)  # a dry run says so too
    assert dry[-1].whole.fraction == 1
    assert list(dict.fromkeys(step.phase for step in steps)) == ["reading weights", "writing"]
    (head,) = prediction_heads(glm.described)
    weights = sum(item.entry.nbytes for item in head.located[3] if item.slot.projection)
    assert steps[0].whole.total["sum"] == pytest.approx(cost("sum", weights))
    shares = [step.whole.fraction for step in steps]
    assert shares == sorted(shares) and shares[-1] == 1
    assert steps[0].whole.total == pytest.approx(steps[-1].whole.total, rel=0.1)


def test_a_folder_that_is_taken_is_refused_before_the_weights_of_heads_are_read(glm, tmp_path):
    plan, out, steps = Model(str(glm.path)).plan("aimer", sparsity="40%"), tmp_path / "out", []
    out.mkdir()
    (out / "notes.txt").touch()
    request = ExportRequest(model=str(glm.path), plan=plan.to_dict(), out=out, mtp="prune")
    with pytest.raises(ExportError, match="not empty"):
        drain(export_run(request), steps.append)
    assert not steps


def test_a_blend_of_runs_ranks_heads_too(glm, tmp_path):
    parts = [replace(SEQUENCES, corpus=f"{at}.jsonl", rows=SEQUENCES.rows[at::2]) for at in (0, 1)]
    for part in parts:
        calibrated(glm.described, tmp_path / "stats", part, groups=WITH_HEADS)
    model = Model(str(glm.path), stats_dir=tmp_path / "stats")
    plan = model.plan("frequency", ("0.jsonl:1", "1.jsonl:3"), sparsity="40%")
    model.export(plan, tmp_path / "out", mtp="prune")
    heads, store = read_manifest(tmp_path / "out").heads, StatsStore(tmp_path / "stats")
    counts = []
    for name in ("0.jsonl", "1.jsonl"):
        (run,) = [run for run in store.runs() if run.manifest.corpus == name]
        tokens = heads_of(run, glm.described)["num_tokens"].to_numpy()
        counts.append(tokens / tokens.sum())
    order = np.argsort(-(counts[0] + 3 * counts[1]), kind="stable")
    assert heads.kept["model.layers.3"][3] == tuple(sorted(order[: len(plan.kept[1])].tolist()))
    assert len(heads.runs) == 2
    store.remove(store.get(heads.runs[0]))  # one run alone is not what the plan was ranked by
    assert head_ranking(model.described, plan, store) == WeighedHeads()


def test_a_finished_export_is_recognised_without_weighing_heads_again(glm, tmp_path):
    model = Model(str(glm.path), stats_dir=tmp_path / "stats")
    plan, out = model.plan("aimer", sparsity="40%"), tmp_path / "out"
    asked = {"model": str(glm.path), "plan": plan.to_dict(), "stats_dir": tmp_path / "stats"}
    pruned = ExportRequest(**asked, out=out, mtp="prune")
    drain(export_run(pruned))
    drain(export_run(ExportRequest(**asked, out=tmp_path / "dropped", mtp="drop")))
    steps = []
    assert drain(export_run(pruned), steps.append)["skipped"]
    described = glm.described
    planned, _ = drain(dry_export(pruned, described), steps.append)
    assert planned.heads == read_manifest(out).heads
    assert steps == []
    for file in glm.path.glob("*.safetensors"):  # by these weights, others would be kept
        content = file.read_bytes()
        header = 8 + int.from_bytes(content[:8], "little")
        file.write_bytes(content[:header] + bytes(len(content) - header))
    assert is_finished_export(pruned, described)
    with pytest.raises(ExportError, match="with another mtp"):
        is_finished_export(pruned.into(ExportRequest, out=tmp_path / "dropped"), described)


def test_heads_in_eight_bits_are_calibrated_and_cut(built, tmp_path):
    made = Made(built, Headed("deepseek_v3", (2,), SPARSE), tmp_path)
    plain = tmp_path / "plain"
    shutil.copytree(made.path, plain)
    where = {}
    for file in sorted(made.path.glob("*.safetensors")):
        eight = to_fp8(load_file(file))
        scaled = {
            n: t.float() * eight[f"{n}_scale_inv"] for n, t in eight.items() if t.itemsize < 2
        }
        kept = {n: t for n, t in eight.items() if not n.endswith("_scale_inv")}
        save_file(kept | scaled, plain / file.name)
        save_file(eight, file)
        where |= dict.fromkeys(eight, file.name)
    edit_json(made.path / "model.safetensors.index.json", weight_map=where)
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    edit_json(made.path / "config.json", quantization_config=fp8)
    asked = {"dtype": "float32", "groups": WITH_HEADS}
    tables = [
        heads_of(
            calibrated(load_model_index(str(path)), tmp_path / "stats", SEQUENCES, **asked),
            made.described,
        )
        for path in (made.path, plain)
    ]
    np.testing.assert_allclose(*(table.to_numpy() for table in tables), rtol=1e-6)

    model = Model(str(made.path), stats_dir=tmp_path / "stats")
    plan = model.plan("reap", "letters.jsonl", sparsity="40%")
    model.export(plan, tmp_path / "out", mtp="prune")
    assert read_manifest(tmp_path / "out").heads.criterion == "reap"
    verified(tmp_path / "out", level="bytes", source=made.path)
    bare = Model(str(made.path), stats_dir=tmp_path / "none")
    bare.export(plan, tmp_path / "again", mtp="prune")
    assert read_manifest(tmp_path / "again").heads.criterion == "aimer"  # by the weights alone
    for file in made.path.glob("*.safetensors"):  # scales that no statistics of weights read
        scaled = load_file(file).items()
        save_file(
            {n: t.to(torch.float8_e8m0fnu) if n.endswith("_scale_inv") else t for n, t in scaled},
            file,
        )
    why = why_not_pruned(load_model_index(str(made.path)), WeighedHeads())
    assert "no statistics of heads are at hand" in why


def test_a_plan_for_a_copy_ranks_heads_by_the_runs_of_the_original(glm, tmp_path):
    calibrated(glm.described, tmp_path / "stats", SEQUENCES, groups=WITH_HEADS)
    plan = Model(glm.path, stats_dir=tmp_path / "stats").plan(
        "reap", "letters.jsonl", sparsity="40%"
    )
    shutil.copytree(glm.path, tmp_path / "copy")
    edit_json(tmp_path / "copy" / "config.json", of="another publisher")
    copy, store = load_model_index(str(tmp_path / "copy")), StatsStore(tmp_path / "stats")
    assert copy.identity != glm.described.identity
    ranking = head_ranking(copy, plan_for_copy(plan, glm.described, copy), store)
    assert ranking.runs == plan.provenance.runs
