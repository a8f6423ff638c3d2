"""Down projections of experts: where a checkpoint has them, and how a loaded model takes new ones.

A layer's file holds the new ones under the names, and with the shapes and dtypes, of the source's
tensors; a stacked tensor is there whole.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
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


@dataclass(frozen=True, slots=True)
class NewMatrix:
    """A matrix of a layer's file."""

    stored: Tensor  # as in the file, of the repair's dtype
    place: int | None = None  # of its expert among those that are kept, if it changes
    rounding_DM: Tensor | None = None  # what rounding changes of the new one


@dataclass(frozen=True, slots=True)
class SourceDown:
    """The source's down projections of a layer, one at a time; those of kept experts change."""

    model: MoEModel
    tensors: DownTensors
    kept: tuple[int, ...]
    is_transposed: bool  # on disk and in the loaded model, the other way round
    loaded_EXX: Tensor | None = None  # all of the layer; what it holds exactly is not read again

    def matrix(self, expert: int) -> Tensor:
        """An expert's matrix as on disk, in memory of its own; FP8 in BF16."""
        entry = self.tensors.entries[expert]
        stored = StoredTensor(self.model.checkpoint.path, entry)
        dtype = torch.bfloat16 if fp8_matrix(self.model, entry) else stored.dtype
        loaded_EXX = self.loaded_EXX
        if loaded_EXX is not None and torch.promote_types(loaded_EXX.dtype, dtype) == (
            loaded_EXX.dtype
        ):
            loaded = loaded_EXX[expert].T if self.is_transposed else loaded_EXX[expert]
            rows, columns = entry.shape[-2:]
            return loaded[:rows, :columns].to("cpu", dtype, copy=True)  # narrower ones are padded
        if self.tensors.is_stacked:
            return stored.rows(range(expert, expert + 1))[...][0]
        return _numbers(self.model, stored[...], entry)

    def orders(self, loaded_EXX: Tensor, block: range) -> list[bool]:
        """Whether the matrices of a loaded block are stored as they are, transposed, or both.

        The first and the last of the block that are kept tell: all are loaded alike.
        """
        inside = [expert for expert in self.kept if expert in block]
        pairs = [
            (self.matrix(expert), loaded_EXX[expert - block.start])
            for expert in sorted({*inside[:1], *inside[-1:]})
        ]
        return [
            is_transposed
            for is_transposed in (False, True)
            if all(
                _is_same(stored.T if is_transposed else stored, loaded_XX)
                for stored, loaded_XX in pairs
            )
        ]

    @property
    def header(self) -> bytes:
        """That of the file; safetensors would write several facts in any order."""
        raw: dict[str, Any] = {"__metadata__": {_TRANSPOSED: str(int(self.is_transposed))}}
        position = 0
        for entry in self._entries:
            is_fp8 = fp8_matrix(self.model, entry) is not None
            nbytes = 2 * entry.nbytes if is_fp8 else entry.nbytes
            raw[entry.name] = {
                "dtype": "BF16" if is_fp8 else entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [position, position + nbytes],
            }
            position += nbytes
        text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)  # the first tensor is aligned to 8 bytes
        return struct.pack("<Q", len(text)) + text

    @property
    def _entries(self) -> list[TensorEntry]:
        """The tensors of the file, in their order."""
        entries = self.tensors.named(self.kept)
        return sorted(entries, key=lambda entry: (-entry.nbytes // entry.numel, entry.name))

    def changed(self, changes: Sequence[Tensor], *, model_transposed: bool) -> Iterator[NewMatrix]:
        """The matrices of the file in their order, with (D, M) changes added and rounded.

        `model_transposed`: the loaded model has (M, D).
        """
        experts = {entry.name: expert for expert, entry in self.tensors.entries.items()}
        places = {expert: place for place, expert in enumerate(self.kept)}
        for entry in self._entries:
            stacked = range(entry.shape[0]) if self.tensors.is_stacked else [experts[entry.name]]
            for expert in stacked:
                stored = self.matrix(expert)
                if expert not in places:
                    yield NewMatrix(stored)
                    continue
                matrix_DM = stored.T if self.is_transposed != model_transposed else stored
                change_DM = changes[places[expert]]
                inside_DM = change_DM[:, : matrix_DM.shape[1]].cpu()  # narrower ones are padded
                exact_DM = matrix_DM.double() + inside_DM
                matrix_DM.copy_(exact_DM)
                rounding_DM = torch.zeros_like(change_DM)
                rounding_DM[:, : matrix_DM.shape[1]] = (matrix_DM.double() - exact_DM).to(change_DM)
                yield NewMatrix(stored, places[expert], rounding_DM)


def _numbers(model: MoEModel, stored: Tensor, entry: TensorEntry) -> Tensor:
    """The numbers of a stored tensor; FP8 in BF16."""
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
