"""Damaged sources and places that cannot take an export: one line on the screen, nothing left."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from analysis.errors import UserError
from analysis.model import load_model_index
from app.cli import cli
from pruning.plan import PruningPlan, model_ref

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(checkpoint, tmp_path):
    """A copy of a checkpoint, to break, with a plan beside it that was made when it was whole."""
    path = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe").path, path)
    model = load_model_index(str(path))
    plan = PruningPlan(model_ref(model), dict.fromkeys((0, 1, 2), (1, 3, 6)))
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "to").mkdir()
    return path


def shards(path):
    return sorted(path.glob("*.safetensors"))


def resave(shard, tensors):
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(held, shard, metadata={"format": "pt"})


def edit_index(path, edit):
    index = json.loads((path / INDEX).read_text())
    edit(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def truncated(path):
    shard = shards(path)[1]
    shard.write_bytes(shard.read_bytes()[:-100])


def missing_shard(path):
    shards(path)[1].unlink()


def tensor_elsewhere(path):
    first, second = shards(path)[:2]
    name = next(iter(load_file(first)))
    edit_index(path, lambda placed: placed.update({name: second.name}))


def name_in_two_shards(path):
    first, second = shards(path)[:2]
    name, tensor = next(iter(load_file(first).items()))
    resave(second, {**load_file(second), name: tensor})


def expert_gone(path):
    shard = next(s for s in shards(path) if any(".experts.5." in n for n in load_file(s)))
    tensors = load_file(shard)
    name = next(name for name in tensors if ".experts.5." in name)
    resave(shard, {key: tensor for key, tensor in tensors.items() if key != name})
    edit_index(path, lambda placed: placed.pop(name))


def router_without_elements(path):
    name = "model.layers.1.mlp.gate.weight"
    shard = next(s for s in shards(path) if name in load_file(s))
    resave(shard, {**load_file(shard), name: torch.zeros(0, 16)})


def unknown_expert_tensor(path):
    name, shard = "model.layers.2.mlp.experts.adapter", shards(path)[0]
    resave(shard, {**load_file(shard), name: torch.zeros(7)})
    edit_index(path, lambda placed: placed.update({name: shard.name}))


# What else a checkpoint may lack, tests/analysis/test_checkpoint.py has.
DAMAGES = {
    truncated: "is truncated",
    missing_shard: "is missing from",
    tensor_elsewhere: "which does not hold it",
    name_in_two_shards: "both hold",
    expert_gone: "lacks the expert 5's",
    router_without_elements: "gate.weight has 0 rows",
    unknown_expert_tensor: "does not say how to prune it",
}


def run(*words):
    """Exit status and what is said, of a command in this process."""
    result = CliRunner().invoke(cli, [*map(str, words)])
    if isinstance(result.exception, UserError):
        return 1, str(result.exception)  # which `main` prints as one line
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def remake_plan(path, plan):
    """Make the plan one of the damaged model, where that can still be described."""
    try:
        model = load_model_index(str(path))
    except UserError:
        return
    plan.write_text(PruningPlan(model_ref(model), dict.fromkeys((0, 1, 2), (1, 3, 6))).to_json())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_source_is_one_line_and_leaves_nothing(source, damage):
    damage(source)
    plan = source.with_name("plan.json")
    remake_plan(source, plan)
    code, said = run("export", source, source.with_name("to") / "out", "--plan", plan)
    assert code == 1
    assert DAMAGES[damage] in said
    assert "\n" not in said
    assert list(source.with_name("to").iterdir()) == []


@pytest.mark.parametrize("damage", [truncated, missing_shard, name_in_two_shards, tensor_elsewhere])
def test_verify_with_a_source_that_was_damaged_later_is_one_line(source, damage):
    out = source.with_name("to") / "out"
    assert run("export", source, out, "--plan", source.with_name("plan.json"))[0] == 0
    damage(source)
    code, said = run("verify", out, "--source", source)
    assert code == 1
    assert DAMAGES[damage] in said
    assert "\n" not in said
    assert run("verify", out, "--level", "bytes")[0] == 0
