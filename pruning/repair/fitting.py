"""Fits a layer of a repair and writes its file, in all processes; the first one writes."""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from analysis.calibration.distributed import Processes
from analysis.files.content import file_sha256
from analysis.files.durable import write_durably, written_durably
from analysis.model.loaded_block import loaded_block
from analysis.model.moe_model import MoEModel
from pruning.engine.repaired_weights import DOWN, DownTensors, SourceDown, cannot, down_tensors
from pruning.plan.plan import PruningPlan, layer_file
from pruning.records.repair import LayerFit
from pruning.repair.expert_store import ExpertStore
from pruning.repair.solver import COLUMNS, SplitRows, Stage, fit_layer


@dataclass(frozen=True, eq=False)
class Fitting:
    """The fits of the layers of a model."""

    model: MoEModel
    plan: PruningPlan
    files: Path  # folder of the new weights
    processes: Processes
    kept: ExpertStore
    columns: int = 1  # blocks of columns that are solved together
    _orders: dict[int, list[bool]] = field(default_factory=dict)  # by layer, see `check_order`
    _hashes: dict[int, str] = field(default_factory=dict)  # of the files that were written

    @cached_property
    def tensors(self) -> dict[int, DownTensors]:
        """By layer, its down projections on disk."""
        return down_tensors(self.model)

    def known(self, layer: int) -> LayerFit | None:
        """What an interrupted repair has fitted; None, so that it is fitted again, if damaged."""
        try:
            outcome = LayerFit.model_validate_json(self._state(layer).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        is_whole = outcome.damping is None or (self.files / layer_file(layer)).is_file()
        return outcome if is_whole else None

    def known_gain(self, layer: int) -> bool | None:
        """Whether an interrupted repair gained by the fit of a layer; None: it has not tried it."""
        outcome = self.known(layer)
        return None if outcome is None else outcome.damping is not None

    def _state(self, layer: int) -> Path:
        return self.files / f"{layer_file(layer)}.json"

    def sha256(self, layer: int) -> str:
        """Of a layer's file; that of an interrupted repair is read."""
        return self._hashes.get(layer) or file_sha256(self.files / layer_file(layer))

    def check_order(self, layer: int, experts: nn.Module) -> None:
        """Find the loaded down projections of kept experts on disk, as they are or transposed."""
        loaded = experts.get_parameter(DOWN).detach()
        found = self._source(layer, is_transposed=False).orders(loaded, loaded_block(experts))
        self._orders[layer] = [one for one in self._orders.get(layer, found) if one in found]
        if not self._orders[layer]:
            reason = f"layer {layer} has its down projections in another form on disk"
            raise cannot(self.model, reason)

    def _source(
        self, layer: int, *, is_transposed: bool, loaded: Tensor | None = None
    ) -> SourceDown:
        kept = tuple(self.plan.kept[layer])
        return SourceDown(self.model, self.tensors[layer], kept, is_transposed, loaded)

    def fit(
        self, layer: int, rows: SplitRows, experts: nn.Module, target: str
    ) -> Generator[Stage, None, LayerFit]:
        """Fit a layer on its rows, and write what changes and what was found; see `fit_layer`."""
        # Processes add up in one order, whatever memory each has.
        at_once = int(self.processes.share(self.columns))
        result = yield from fit_layer(rows, self.kept, self.processes.total, at_once)
        facts: dict[str, Any] = {
            "layer": layer,
            "target": target,
            "held_out": {f"{damping:g}": error for damping, error in result.held_out.items()},
            "tokens": int(self.processes.total(torch.tensor(len(rows.every.residual_TD)))),
        }
        if result.changes is not None:
            if layer not in self._orders:
                self.check_order(layer, experts)
            rounding = self._write(layer, rows, result.changes, experts)
            facts |= {"damping": result.damping, "rounding": rounding}
        outcome = LayerFit(**facts)
        with self.processes.together():
            if self.processes.is_first:
                text = outcome.model_dump_json(exclude_unset=True)
                write_durably(self._state(layer), text.encode())
        return outcome

    def _write(
        self, layer: int, rows: SplitRows, changes: Sequence[Tensor], experts: nn.Module
    ) -> float:
        """Write the new matrices; what rounding them costs of what was lacking, held out."""
        down, held, sha = experts.get_parameter(DOWN).detach(), rows.held, hashlib.sha256()
        loaded = None if down.is_meta else down  # in blocks, none is there any more
        source = self._source(layer, is_transposed=self._orders[layer][0], loaded=loaded)
        added_TD = torch.zeros_like(held.residual_TD)
        with self.processes.together(), ExitStack() as stack:
            file = None
            if self.processes.is_first:
                draft = stack.enter_context(written_durably(self.files / layer_file(layer)))
                file = stack.enter_context(draft.open("wb"))
                file.write(source.header)
                sha.update(source.header)
            model_transposed = bool(experts.is_transposed)
            for new in source.changed(changes, model_transposed=model_transposed):
                if file:
                    content = new.stored.contiguous().view(torch.uint8).numpy().data
                    file.write(content)
                    sha.update(content)
                if new.place is not None and new.rounding_DM is not None:
                    scaled_RM = held.scaled[new.place]
                    added_RD = scaled_RM @ new.rounding_DM.T
                    added_TD.index_add_(0, held.tokens[new.place], added_RD)
        self._hashes[layer] = str(self.processes.share(sha.hexdigest()))
        lost, lacking = (
            float(self.processes.total(_squares(values))) for values in (added_TD, held.residual_TD)
        )
        return lost / lacking


def _squares(values_TD: Tensor) -> Tensor:
    """The sum of their squares; a block of columns at a time, as it is in float64."""
    blocks = torch.split(values_TD, COLUMNS, 1)
    return torch.stack([block_TC.double().square().sum() for block_TC in blocks]).sum()
