"""Target sizes where it matters from which layer an expert goes, found by trying every budget."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.errors import PlanError
from analysis.model import load_model_index
from builders import as_gib
from pruning.budget import Budget, size_budget
from pruning.constraints import Constraints, rooms_of
from pruning.plan import PruningPlan, model_ref
from pruning.schedules import SCHEDULES, Evidence, Spending, allocate
from pruning.sizes import size_report

SPENDERS = [name for name in SCHEDULES if name != "file"]


def rewritten(checkpoint, path, change):
    """A copy of the tiny OLMoE whose tensors went through `change`."""
    shutil.copytree(checkpoint("olmoe", shards=1).path, path)
    tensors = change(load_file(path / "model.safetensors"))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture
def uneven(checkpoint, tmp_path):
    """The experts of layer 1 have half the bytes of those of layers 0 and 2."""

    def halve(tensors):
        return {
            name: each.to(torch.bfloat16) if "layers.1.mlp.experts" in name else each
            for name, each in tensors.items()
        }

    return load_model_index(str(rewritten(checkpoint, tmp_path / "uneven", halve)))


@pytest.fixture
def headed(checkpoint, tmp_path):
    """With a prediction head that has experts, which goes with the first expert of all layers."""

    def add(tensors):
        last = {name: each for name, each in tensors.items() if name.startswith("model.layers.2.")}
        head = {name.replace("model.layers.2.", "mtp.layers.0."): last[name] + 1 for name in last}
        return {**tensors, **head}

    path = rewritten(checkpoint, tmp_path / "headed", add)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    return load_model_index(str(path))


@pytest.mark.parametrize(
    "limits", [Constraints(), Constraints(multiple_of=2, floor=3)], ids=["free", "pairs"]
)
@pytest.mark.parametrize("dtype", ["own", "bfloat16"])
@pytest.mark.parametrize("name", SPENDERS)
@pytest.mark.parametrize("kind", ["uneven", "headed"])
def test_the_smallest_budget_of_every_schedule(request, kind, name, dtype, limits):
    model = request.getfixturevalue(kind)
    values = np.random.default_rng(3).normal(size=(3, 7))
    evidence = Evidence(values, values)

    def taken(total):
        made = allocate(name, Spending(model.layers, Budget(total, "size", ""), limits), evidence)
        return [
            layer.num_experts - keep for layer, keep in zip(model.layers, made.keep, strict=True)
        ]

    def size(removed):
        kept = {
            layer.index: tuple(range(gone, layer.num_experts))
            for layer, gone in zip(model.layers, removed, strict=True)
        }
        report = size_report(model, PruningPlan(model_ref(model), kept))
        return report.bytes_after if dtype == "own" else 2 * report.params_after

    rooms = rooms_of(model.layers, limits)
    first, last = (sum(getattr(room, end) for room in rooms) for end in ("least", "most"))
    sizes = {total: size(taken(total)) for total in range(first, last + 1, rooms[0].step)}
    for wanted in sorted({size - 1 for size in sizes.values()} | set(sizes.values())):
        fitting = [total for total, size in sizes.items() if size <= wanted]
        if fitting:
            budget = size_budget(model, as_gib(wanted), dtype, limits, spread=taken)
            assert budget.total == fitting[0]
        else:
            with pytest.raises(PlanError, match="smallest target that works is"):
                size_budget(model, as_gib(wanted), dtype, limits, spread=taken)
