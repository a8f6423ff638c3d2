"""Experts found by their bytes, where these were copied, cast, moved or changed."""

import json
import shutil
from itertools import pairwise

import pytest
import torch
from exports import edit_tensors, export, keeping, shards_of, tensors_of
from safetensors.torch import save_file

from analysis.drain import drain
from analysis.errors import CheckpointError, PlanError
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint
from pruning import Model
from pruning.actions.action import Note, call_of_a_job
from pruning.actions.compare_checkpoints import CompareCheckpointsRequest
from pruning.actions.listing import action
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.spec.base import validated
from pruning.surgery.matching import match_checkpoints
from pruning.surgery.reading import RangeFile

KEPT = (1, 3, 4)
EXPERT = "model.layers.{}.mlp.experts.{}.{}_proj.weight"
ROUTER = "model.layers.{}.mlp.gate.weight"


@pytest.fixture
def original(checkpoint):
    """Sparse layers 0, 2, 3 of 6 experts, in three shards of float32."""
    return load_model_index(str(checkpoint("qwen3_moe").path))


@pytest.fixture
def pruned(original, tmp_path):
    """An export that keeps KEPT, free to be changed."""
    export(original, keeping(original, KEPT), tmp_path / "pruned")
    return tmp_path / "pruned"


def changed(path, change):
    """The checkpoint with tensors changed, by a function of all of them."""
    tensors = change(tensors_of(path))
    for shard in shards_of(path):
        shard.unlink()
    (path / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return load_model_index(str(path))


def cast_to(dtype):
    return lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()}


def matched(original, pruned):
    return drain(match_checkpoints(original, pruned))


def test_each_byte_is_read_once_a_piece_at_a_time(original, pruned, monkeypatch):
    read, spans = RangeFile.read, []

    def note(file, start, nbytes):
        spans.append((file.path, start, start + nbytes))
        return read(file, start, nbytes)

    monkeypatch.setattr(RangeFile, "read", note)
    smaller = load_model_index(str(pruned))
    match = matched(original, smaller)
    assert match.kept == {0: KEPT, 2: KEPT, 3: KEPT}
    spans.sort()
    for (path, _, end), (other, start, _) in pairwise(spans):
        assert path != other or end <= start
    both = (original, smaller)
    assert sum(end - start for _, start, end in spans) == sum(m.checkpoint.nbytes for m in both)
    # Never a stack, nor a layer, but one matrix: 16 rows of 24.
    experts = [end - start for _, start, end in spans if end - start < 64 * 16 * 4]
    assert max(experts) <= 16 * 40 * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_is_said_and_undone(original, pruned, dtype):
    smaller = changed(pruned, cast_to(dtype))
    match = matched(original, smaller)
    assert match.kept == {0: KEPT, 2: KEPT, 3: KEPT}
    assert match.cast == (("F32", {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]),)
    assert all(len(layer.by_bytes) == 3 and not layer.disputed for layer in match.layers)
    assert sum(counts.cast for counts in match.others.values()) == len(original.unlocated)
    assert not any(counts.equal + counts.differ for counts in match.others.values())


def test_numbers_that_a_dtype_cannot_hold_are_cast_as_torch_does(tmp_path):
    """Ties, subnormals, infinities and numbers beyond the range of float16."""
    tiny_checkpoint(tmp_path / "whole", "mixtral", shards=1)
    values = torch.tensor([65520.0, -1e30, 1 + 2**-8, 1 + 3 * 2**-8, 1e-8, 3e-40, 0.0, -0.0])

    def odd(tensors):
        for name, tensor in tensors.items():
            if ".experts." in name:
                tensor.reshape(-1)[:8] = values
        return tensors

    original = changed(tmp_path / "whole", odd)
    for dtype in (torch.bfloat16, torch.float16):
        shutil.copytree(tmp_path / "whole", tmp_path / str(dtype))
        cast = changed(tmp_path / str(dtype), cast_to(dtype))
        assert matched(original, cast).kept == {layer: tuple(range(6)) for layer in range(3)}


def test_another_order_is_said(original, pruned):
    def turned(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            parts = name.split(".")
            if "experts" in parts:
                parts[5] = str(2 - int(parts[5]))
            renamed[".".join(parts)] = tensor.flip(0) if name.endswith("gate.weight") else tensor
        return renamed

    match = matched(original, changed(pruned, turned))
    assert match.kept == {0: KEPT, 2: KEPT, 3: KEPT}
    assert [layer.experts for layer in match.layers] == [KEPT[::-1]] * 3
    assert not any(layer.is_ordered or layer.disputed for layer in match.layers)


def test_router_rows_decide_between_experts_with_the_same_bytes(original, tmp_path):
    """Experts 1 and 3 are one twice in the original; 3 alone was kept."""
    shutil.copytree(original.checkpoint.path, tmp_path / "twins")
    names = [(EXPERT.format(2, 1, part), EXPERT.format(2, 3, part)) for part in ("gate", "up")]
    names.append((EXPERT.format(2, 1, "down"), EXPERT.format(2, 3, "down")))

    def copied(tensors):
        return {**tensors, **{other: tensors[name].clone() for name, other in names}}

    twins = changed(tmp_path / "twins", copied)
    export(twins, (0, 3, 5), tmp_path / "pruned")
    match = matched(twins, load_model_index(str(tmp_path / "pruned")))
    assert match.kept[2] == (0, 3, 5)
    assert not any(layer.disputed for layer in match.layers)
    # Both were kept: one each.
    export(twins, (1, 3), tmp_path / "both")
    assert matched(twins, load_model_index(str(tmp_path / "both"))).kept[2] == (1, 3)


def test_bytes_that_several_experts_hold_tell_of_none(original, tmp_path):
    """Experts 1 and 3 share a gate matrix, all that is left of 3 in the pruned checkpoint."""
    shutil.copytree(original.checkpoint.path, tmp_path / "alike")
    names = EXPERT.format(2, 1, "gate"), EXPERT.format(2, 3, "gate")
    alike = changed(tmp_path / "alike", lambda held: {**held, names[1]: held[names[0]].clone()})
    export(alike, KEPT, tmp_path / "pruned")

    def refitted(tensors):
        for part in ("up", "down"):
            tensors[EXPERT.format(2, 1, part)] += 0.5
        tensors[ROUTER.format(2)][1] += 0.5
        return tensors

    match = matched(alike, changed(tmp_path / "pruned", refitted))
    assert [layer.experts for layer in match.layers] == [KEPT, (1, None, 4), KEPT]
    assert not match.layers[1].changed


def test_a_router_that_disagrees_is_said(original, pruned):
    def swapped(tensors):
        tensors[ROUTER.format(0)] = tensors[ROUTER.format(0)][[1, 0, 2]].clone()
        tensors[ROUTER.format(3)][2] += 1
        return tensors

    match = matched(original, changed(pruned, swapped))
    assert match.kept == {0: KEPT, 2: KEPT, 3: KEPT}
    assert [dict(layer.disputed) for layer in match.layers] == [{0: 3, 1: 1}, {}, {2: None}]


def test_what_was_refitted_or_requantised_is_told_by_what_is_left(original, pruned):
    def refitted(tensors):
        tensors[EXPERT.format(0, 1, "down")] += 0.5
        for part in ("gate", "up", "down"):
            tensors[EXPERT.format(2, 0, part)] += 0.5
        return tensors

    match = matched(original, changed(pruned, refitted))
    assert match.kept == {0: KEPT, 2: KEPT, 3: KEPT}
    first, second, third = match.layers
    assert (first.by_bytes, dict(first.changed), first.by_router) == ({0, 2}, {1: ("down",)}, ())
    assert (second.by_bytes, dict(second.changed), second.by_router) == ({1, 2}, {}, (0,))
    assert third.by_bytes == {0, 1, 2}


def test_an_expert_of_which_nothing_is_left_makes_no_plan(original, pruned):
    def merged(tensors):
        for part in ("gate", "up", "down"):
            tensors[EXPERT.format(2, 0, part)] += 0.5
        tensors[ROUTER.format(2)][0] += 0.5
        return tensors

    match = matched(original, changed(pruned, merged))
    assert [layer.unknown for layer in match.layers] == [(), (0,), ()]
    with pytest.raises(PlanError, match=r"^1 of 9 experts of pruned \(layers 2\) have neither"):
        _ = match.kept


def test_other_tensors_are_counted_by_kind(original, pruned):
    def edited(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"] += 1
        tensors["model.norm.weight"] += 1
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        return tensors

    others = matched(original, changed(pruned, edited)).others
    assert (others["dense layers"].equal, others["dense layers"].differ) == (2, 1)
    outside = others["outside of the layers"]
    assert (outside.equal, outside.differ, outside.pruned_only) == (1, 1, 1)
    assert others["attention and norms"].differ == 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"num_hidden_layers": 3}, r"has layers: 4 and .* 3"),
        ({"mlp_only_layers": [1, 3]}, r"has the sparse layers 0,2-3 and .* 0,2;"),
    ],
)
def test_models_of_another_shape_are_refused(original, pruned, edit, message):
    edit_json(pruned / "config.json", **edit)
    with pytest.raises(CheckpointError, match=message):
        matched(original, load_model_index(str(pruned)))


def test_the_smaller_one_comes_second(original, pruned):
    with pytest.raises(CheckpointError, match="name the original first"):
        matched(load_model_index(str(pruned)), original)


def test_narrower_experts_are_refused(original, checkpoint, tmp_path):
    shutil.copytree(original.checkpoint.path, tmp_path / "narrow")
    for shard in shards_of(tmp_path / "narrow"):
        edit_tensors(
            shard,
            lambda tensors: {
                name: (tensor[:, :16] if "down" in name else tensor[:16]).clone()
                if ".experts." in name
                else tensor
                for name, tensor in tensors.items()
            },
        )
    edit_json(tmp_path / "narrow" / "config.json", moe_intermediate_size=16)
    with pytest.raises(CheckpointError, match="has experts of a width of 24 and narrow 16"):
        matched(original, load_model_index(str(tmp_path / "narrow")))


def test_uneven_layers_and_fewer_experts_per_token(original, tmp_path):
    kept = {0: (0, 1, 2, 3), 2: (2, 5), 3: (0, 1, 4)}
    plan = fit_plan(PruningPlan(model_ref(original), kept, top_k=1), original)
    export(original, plan, tmp_path / "uneven")
    model = Model(original.checkpoint.path)
    found = model.run("compare-checkpoints", pruned=str(tmp_path / "uneven"))
    assert found.plan.kept == kept
    assert found.plan.top_k == dict.fromkeys(kept, 1)
    assert found.plan.digest == plan.digest
    assert json.loads(found.plan.to_json())["schedule_parameters"]["checkpoint"] == "uneven"
    values = {"model": original.name, "pruned": "uneven"}
    call = call_of_a_job(validated(CompareCheckpointsRequest, values))
    told = action("compare-checkpoints").tell(call, found)
    assert Note("It selects fewer experts per token (1), and so does the plan.") in told.shown
