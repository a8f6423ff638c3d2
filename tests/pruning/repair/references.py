"""What a repair must come to, worked out again: plain forwards, loops, dense float64 systems.

Models are pruned by hand and run by transformers; files are read by their names alone.
"""

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from families.configs import Case
from families.physical import block_of, layers_of, listening
from families.plain import activations, matrices_of


@dataclass(frozen=True)
class LayerRun:
    """One layer of a model on some tokens."""

    scaled: np.ndarray  # (T, K, M) activations of each expert times its gate weight
    experts: np.ndarray  # (T, D) the sum of the experts' outputs
    stream: np.ndarray  # (T, S) what the layer hands on


def run_layers(
    model: PreTrainedModel, case: Case, layers: Sequence[int], rows: Sequence[np.ndarray]
) -> dict[int, LayerRun]:
    """Layers of a model, one sequence at a time, one token and one expert at a time."""
    parts: dict[int, list[tuple[np.ndarray, ...]]] = {layer: [] for layer in layers}
    outputs: dict[int, Tensor] = {}
    hooks = []
    for layer in layers:

        def keep(_: Any, __: Any, output: Any, layer: int = layer) -> None:
            outputs[layer] = output if isinstance(output, Tensor) else output[0]

        hooks.append(layers_of(model)[layer].register_forward_hook(keep))
    for row in rows:
        with torch.no_grad(), listening(model, case) as heard:
            model(input_ids=torch.from_numpy(row).long()[None], use_cache=False)
        for layer in layers:
            taken, given = heard.ran[layer]
            scaled = _scaled(case, block_of(model, case, layer).experts, *taken)
            flat = (_flat(output, len(row)) for output in (given, outputs.pop(layer)))
            parts[layer].append((scaled, *flat))
    for hook in hooks:
        hook.remove()
    return {
        layer: LayerRun(*map(np.concatenate, zip(*found, strict=True)))
        for layer, found in parts.items()
    }


def _flat(values: Tensor, tokens: int) -> np.ndarray:
    return values.detach().double().numpy().reshape(tokens, -1)


def _scaled(case: Case, experts: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> np.ndarray:
    hidden = hidden.reshape(-1, hidden.shape[-1])
    matrices = [matrices_of(case.model_type, experts, e) for e in range(experts.num_experts)]
    found = torch.zeros(len(hidden), len(matrices), len(matrices[0].down), dtype=torch.float64)
    with torch.no_grad():
        for token, x in enumerate(hidden):
            for expert, weight in zip(index[token].tolist(), weights[token], strict=True):
                a = activations(case.model_type, experts, matrices[expert], x)
                found[token, expert] += (a * weight).double()
    return found.numpy()


@dataclass(frozen=True)
class Dense:
    """The damped least squares of a layer, with all unknowns in one matrix."""

    scaled: np.ndarray  # (T, K, M)
    lacking: np.ndarray  # (T, D)
    damping: float

    @property
    def matrix(self) -> np.ndarray:
        """(T, K x M)."""
        return self.scaled.reshape(len(self.scaled), -1)

    @property
    def size(self) -> float:
        return self.damping * float((self.matrix**2).sum(axis=0).mean())

    def squared_error(self, change: np.ndarray) -> float:
        """That a change, (K, M, D), leaves."""
        left = self.lacking - self.matrix @ change.reshape(-1, self.lacking.shape[1])
        return float((left**2).sum())

    def objective(self, change: np.ndarray) -> float:
        return self.squared_error(change) + self.size * float((change**2).sum())

    @property
    def best(self) -> np.ndarray:
        """(K, M, D): the change with the least objective."""
        normal = self.matrix.T @ self.matrix + self.size * np.eye(self.matrix.shape[1])
        change = np.linalg.solve(normal, self.matrix.T @ self.lacking)
        return change.reshape(*self.scaled.shape[1:], -1)


def down_of(model: PreTrainedModel, case: Case, layer: int) -> np.ndarray:
    """(E, M, D) float64: the transposed down projections of a layer."""
    experts = block_of(model, case, layer).experts
    found = [matrices_of(case.model_type, experts, e).down for e in range(experts.num_experts)]
    return torch.stack(found).double().numpy()


def substituted(source: Path, files: Path, out: Path) -> Path:
    """A copy of a checkpoint with the tensors of a repair's files in place of its own."""
    shutil.copytree(source, out)
    new: dict[str, Tensor] = {}
    for file in sorted(files.glob("*.safetensors")):
        new |= load_file(file)
    for shard in sorted(out.glob("*.safetensors")):
        tensors = load_file(shard)
        for name in tensors.keys() & new.keys():
            assert (new[name].shape, new[name].dtype) == (tensors[name].shape, tensors[name].dtype)
            tensors[name] = new.pop(name)
        save_file(tensors, shard, metadata={"format": "pt"})
    assert not new, new.keys()
    return out


def with_layers_of(
    model: PreTrainedModel, other: PreTrainedModel, case: Case, layers: Sequence[int]
) -> PreTrainedModel:
    """A copy of a model with the down projections of another in some layers."""
    result = copy.deepcopy(model)
    for layer in layers:
        own, new = (block_of(network, case, layer).experts.down_proj for network in (result, other))
        own.data.copy_(new.data)
    return result


def changed_tensors(before: PreTrainedModel, after: PreTrainedModel) -> set[str]:
    others = dict(after.named_parameters())
    return {
        name
        for name, parameter in before.named_parameters()
        if not torch.equal(parameter, others[name])
    }
