"""Exports of the tiny models of all families whose layers keep different numbers of experts."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from analysis.drain import drain
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from families.configs import CASES, Case
from families.physical import logits_of, physically_pruned
from families.tiny_models import tiny_model
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint

# One sparse layer cannot differ from another.
NON_UNIFORM = [case for case in CASES if len(case.sparse) > 1]
NAMED = {case.name: case for case in NON_UNIFORM}


@dataclass(frozen=True)
class Pruned:
    """A non-uniform export; nobody writes into it."""

    case: Case
    source: MoEModel  # the checkpoint that was exported
    plan: PruningPlan  # what stays
    path: Path  # the export
    model: PreTrainedModel  # the original, pruned in memory by hand
    logits: torch.Tensor  # what that computes

    @property
    def counts(self) -> list[int]:
        """Experts of each sparse layer."""
        return [len(ids) for ids in self.plan.kept.values()]


def keeps_of(case: Case) -> list[int]:
    """Experts that each sparse layer keeps: the most and the fewest by turns, never all."""
    fewer = case.experts - max(1, case.groups)
    return list(itertools.islice(itertools.cycle((fewer, case.smallest)), len(case.sparse)))


def plan_of(model: MoEModel, case: Case, keeps: list[int]) -> PruningPlan:
    """Keep so many experts in each layer, always other ones, the same number in each group."""
    kept, size = {}, case.experts // case.groups
    for layer, keep in zip(case.sparse, keeps, strict=True):
        seeded = torch.Generator().manual_seed(layer + 1)
        orders = [torch.randperm(size, generator=seeded).tolist() for _ in range(case.groups)]
        kept[layer] = tuple(
            sorted(
                group * size + number
                for group, order in enumerate(orders)
                for number in order[: keep // case.groups]
            )
        )
    return PruningPlan(model_ref(model), kept)


def make_pruned(case: Case, parent: Path, *, quantise: bool = False) -> Pruned:
    """Save the tiny model of a case, export it, and prune a copy of it by hand.

    With `quantise`, the checkpoint's experts are FP8 with a scale, those of the copy are not.
    """
    model = tiny_model(case)
    size = "1GB" if quantise else "40KB"  # one shard, whose index need not be written anew
    model.save_pretrained(parent / "source", max_shard_size=size)
    if quantise:
        _quantise(parent / "source", model)
    source = load_model_index(str(parent / "source"))
    plan = plan_of(source, case, keeps_of(case))
    drain(export_checkpoint(source, plan, parent / "pruned"))
    pruned = physically_pruned(model, case, plan.kept)
    return Pruned(case, source, plan, parent / "pruned", pruned, logits_of(pruned))


def _quantise(path: Path, model: PreTrainedModel) -> None:
    """Make the matrices of the experts FP8 blocks with scales, as in FP8 checkpoints."""
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        scale = tensors[name].abs().max() / torch.finfo(torch.float8_e4m3fn).max
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale.reshape(1, 1)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    plain = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    settings = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": plain,
    }
    config = {**config_of(path), "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))


def config_of(path: Path) -> dict[str, Any]:
    """The configuration of a checkpoint."""
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    return config
