"""Down projections of experts: where a checkpoint has them, and how a loaded model takes new ones.

A layer's file holds the new ones under the names, and with the shapes and dtypes, of the source's
tensors; a stacked tensor is there whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from analysis.calibration.skeleton import StoredTensor
from analysis.checkpoint.fp8 import apply_scales
from analysis.checkpoint.index import TensorEntry
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families.base import MoEFamily, SlotKind
from analysis.model.fp8_matrices import fp8_matrix
from analysis.model.loaded_block import loaded_block
from analysis.model.moe_model import MoEModel
from analysis.model.widths import SCALE_ROLE

_PLAIN = frozenset(("F64", "F32", "BF16", "F16"))
DOWN = "down_proj"
_TRANSPOSED = "transposed"  # metadata of a file: "1" if its matrices are not as the model's


def cannot(
    model: MoEModel, reason: str, instead: str = "prune without a repair"
) -> UnsupportedModelError:
    """The refusal of a model."""
    return UnsupportedModelError(f"{model.name} cannot be repaired: {reason}; {instead}.")


@dataclass(frozen=True, slots=True)
class DownTensors:
    """The down projections of a layer, on disk."""

    layer: int
    entries: Mapping[int, TensorEntry]  # by expert; all the same one if experts are stacked
    is_stacked: bool

    def named(self, experts: Iterable[int]) -> list[TensorEntry]:
        """The tensors of some experts."""
        return list(
            {entry.name: entry for entry in map(self.entries.__getitem__, experts)}.values()
        )


def down_tensors(model: MoEModel) -> dict[int, DownTensors]:
    """Layer -> its down projections; refuses a model whose projections cannot be rewritten."""
    tensors: dict[int, DownTensors] = {}
    for layer in model.layers:
        entries: dict[int, TensorEntry] = {}
        stacked = False
        for item in model.located[layer.index]:
            if item.slot.projection != "down" or item.slot.kind is SlotKind.ROUTER:
                continue
            if fp8_matrix(model, item.entry) or item.slot.role == SCALE_ROLE:
                pass  # the repaired ones are in BF16
            elif item.entry.dtype not in _PLAIN or item.slot.role not in ("weight", "bias"):
                reason = f"{item.entry.name} is quantised ({item.entry.dtype})"
                raise cannot(model, reason, "repair a copy in BF16, or prune without a repair")
            if item.slot.role == "weight":
                stacked = item.slot.kind is SlotKind.STACKED
                ids = range(layer.num_experts) if item.slot.expert is None else (item.slot.expert,)
                entries |= dict.fromkeys(ids, item.entry)
        if len(entries) < layer.num_experts:
            raise cannot(model, f"layer {layer.index} shares or ties its down projections")
        tensors[layer.index] = DownTensors(layer.index, entries, stacked)
    return tensors


@dataclass(frozen=True, slots=True, eq=False)
class SourceWeights:
    """The source's down projections of some experts, as a loaded model has them."""

    tensors: dict[str, Tensor]  # by name, as on disk; those of FP8 in BF16
    places: Mapping[int, tuple[str, int | None]]  # expert -> tensor, and its place if stacked
    is_transposed: bool  # whether the model has them the other way round

    def matrix(self, expert: int) -> Tensor:
        """An expert's matrix as the loaded model has it; a view, of the repair's dtype."""
        name, place = self.places[expert]
        matrix = self.tensors[name] if place is None else self.tensors[name][place]
        return matrix.T if self.is_transposed else matrix

    def add(self, kept: Sequence[int], change_KMD: Tensor, *, is_transposed: bool) -> Tensor:
        """Add changes of the transposed matrices, rounded; what rounding changes, (K, M, D).

        `is_transposed`: the loaded model has them transposed.
        """
        rounding_KMD = torch.zeros_like(change_KMD)
        for expert, change_MD, rounding_MD in zip(kept, change_KMD, rounding_KMD, strict=True):
            matrix = self.matrix(expert)
            matrix_MD = matrix if is_transposed else matrix.T
            inside_MD = change_MD[: len(matrix_MD)].cpu()  # narrower experts are padded
            exact_MD = matrix_MD.double() + inside_MD
            matrix_MD.copy_(exact_MD)
            rounding_MD[: len(matrix_MD)] = (matrix_MD.double() - exact_MD).to(rounding_MD.device)
        return rounding_KMD

    def save(self, path: Path) -> None:
        """Write them; safetensors would write several facts in any order."""
        facts = {_TRANSPOSED: str(int(self.is_transposed))}
        data = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        safetensors.torch.save_file(data, path, metadata=facts)


def read_source(
    model: MoEModel, tensors: DownTensors, kept: Sequence[int], loaded_EXX: Tensor
) -> SourceWeights:
    """The source's matrices of the kept experts, found to be those of the loaded layer."""
    stored = {entry.name: _numbers(model, entry) for entry in tensors.named(kept)}
    places = {
        expert: (tensors.entries[expert].name, expert if tensors.is_stacked else None)
        for expert in kept
    }
    for is_transposed in (False, True):
        source = SourceWeights(stored, places, is_transposed)
        if all(_is_same(source.matrix(expert), loaded_EXX[expert]) for expert in kept):
            return source
    raise cannot(model, f"layer {tensors.layer} has its down projections in another form on disk")


def _numbers(model: MoEModel, entry: TensorEntry) -> Tensor:
    """A tensor of the source; FP8 in BF16."""
    stored = StoredTensor(model.checkpoint.path, entry)[...]
    matrix = fp8_matrix(model, entry)
    if matrix is None:
        return stored
    values = stored.to(torch.float32)
    apply_scales(values, torch.from_numpy(matrix.scales()), matrix.block)
    return values.to(torch.bfloat16)


def _is_same(stored: Tensor, loaded: Tensor) -> bool:
    inside = loaded[: stored.shape[0], : stored.shape[1]]  # narrower experts are padded
    # In the narrower dtype: FP8 may be loaded in float32.
    dtype = min(loaded.dtype, stored.dtype, key=lambda precision: precision.itemsize)
    return inside.shape == stored.shape and torch.equal(stored.to(dtype), inside.cpu().to(dtype))


def new_down(experts: nn.Module, family: MoEFamily, path: Path) -> Tensor:
    """The stacked down projections of a loaded layer, with those of a file in place.

    Of a block of experts, if only their weights are there.
    """
    changed, block = experts.get_parameter(DOWN).detach().clone(), loaded_block(experts)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            is_transposed = (file.metadata() or {}).get(_TRANSPOSED) == "1"
            for name in file.keys():  # noqa: SIM118
                slot = family.locate(name)
                if slot is None:
                    raise CheckpointError(f"{path} holds {name}, which is no expert's.")
                if slot.expert is not None and slot.expert not in block:
                    continue
                stored = file.get_slice(name)
                rows = stored[block.start : block.stop] if slot.expert is None else stored[:]
                matrices = rows.to(changed)
                matrices = matrices.transpose(-2, -1) if is_transposed else matrices
                place = changed if slot.expert is None else changed[slot.expert - block.start]
                place[..., : matrices.shape[-2], : matrices.shape[-1]] = matrices
    except (safetensors.SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"The repair's file {path} cannot be read ({error}).") from error
    return changed
