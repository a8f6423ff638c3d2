"""Routers of loaded models: which tensors have an entry per expert, and how to run without some.

A cut is made when the module that holds the tensor is called: accelerate loads offloaded weights
only then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from analysis.errors import UnsupportedModelError
from analysis.families import token_tables
from analysis.families.base import MoEFamily


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """A module that holds tensors with one entry per expert."""

    module: nn.Module  # the router, a part of it, or the block around it
    axes: Mapping[str, int]  # name of each such tensor -> the axis with one entry per expert
    # Name of a table of token ids, see `token_tables` -> experts that it may name.
    tables: Mapping[str, int] = field(default_factory=dict)
    # Name of a table -> the kept experts that it was renumbered for last, and the outcome.
    _renumbered: dict[str, tuple[list[int], Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def renumbered(self, name: str, kept: Sequence[int]) -> Tensor:
        """A table of token ids for the kept experts alone."""
        table: Tensor = _storage_of(self.module, name)[name]
        ids, new_table = self._renumbered.get(name, ([], table))
        if ids != kept:
            rows = token_tables.renumbered(table.cpu().numpy(), kept, self.tables[name])
            new_table = torch.from_numpy(rows)
            self._renumbered[name] = list(kept), new_table
        return new_table.to(table.device)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Those tensors, as they are now."""
        for name in self.axes:
            tensor = _storage_of(self.module, name)[name]
            if tensor is not None:
                yield name, tensor


@dataclass(frozen=True, slots=True, eq=False)
class RouterParts:
    """What the router of one layer consists of."""

    block: nn.Module  # the MoE block, or the layer where that is it
    router: nn.Module  # the module whose forward returns the ids of the selected experts last
    matrix: tuple[nn.Module, str]  # the holder and the name of the router's matrix
    # Every module that holds tensors with an entry per expert, the router among them if it does.
    holders: tuple[Holder, ...]
    num_experts: int  # experts that it chooses among


def find_block(model: nn.Module, family: MoEFamily, layer: int) -> nn.Module | None:
    """The MoE block of a layer under any prefix of the family; None if absent."""
    for trunk in family.module_trunks:
        try:
            block = model.get_submodule(family.block_module(layer, trunk))
            block.get_submodule(family.router)
        except AttributeError:
            continue
        return block
    return None


def router_parts(block: nn.Module, family: MoEFamily, layer: int) -> RouterParts:
    """What a block's router consists of."""
    matrix = family.router_tensors[0]
    path, _, name = matrix.name.rpartition(".")
    module = block.get_submodule(path)
    # An offloaded weight is on the meta device, where it still has its shape.
    rows = int(module.get_parameter(name).shape[matrix.axis])
    axes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    tables: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for tensor in family.router_tensors:
        path, _, leaf = tensor.name.rpartition(".")
        if leaf not in _tensor_names(block.get_submodule(path)):  # a bias may be switched off
            continue
        if tensor.holds_ids:
            tables[path][leaf] = rows
        else:
            axes[path][leaf] = tensor.axis
    router = block.get_submodule(family.router)
    pairs = (*router.named_parameters(), *router.named_buffers())
    held_names = {f"{family.router}.{name}" for name, _ in pairs}
    if family.module_block:  # not where the block is the layer, which holds other things too
        held_names |= _tensor_names(block)
    parts = (*axes.items(), *tables.items())
    covered_names = {f"{path}.{leaf}".lstrip(".") for path, names in parts for leaf in names}
    if unknown := sorted(held_names - covered_names - set(family.router_others)):
        odd = unknown[0].removeprefix(f"{family.router}.")
        raise UnsupportedModelError(
            f"The router of layer {layer} holds {odd!r}, but the family {family.label} does not "
            "say how it depends on the experts."
        )
    holders = tuple(
        Holder(block.get_submodule(path), axes[path], tables[path])
        for path in dict.fromkeys((*axes, *tables))
    )
    return RouterParts(block, router, (module, name), holders, rows)


def _tensor_names(module: nn.Module) -> set[str]:
    """Names of the parameters and buffers that a module itself holds."""
    pairs = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return {name for name, _ in pairs}


@contextmanager
def cut(holder: Holder, kept: Tensor) -> Iterator[None]:
    """The module with its expert-indexed tensors and counts cut to the kept experts."""
    members = holder.module.__dict__
    attributes: dict[str, int] = {"num_experts": len(kept)}
    if "top_k" in members:
        attributes["top_k"] = min(members["top_k"], len(kept))
    with ExitStack() as restore:
        for name, tensor in tuple(holder.tensors()):
            # Selecting keeps the graph, so a gradient reaches the kept rows.
            cut_tensor = tensor.index_select(holder.axes[name], kept.to(tensor.device))
            replace_tensor(holder.module, name, cut_tensor, restore)
        for name in holder.tables:
            table = holder.renumbered(name, kept.tolist())
            replace_tensor(holder.module, name, table, restore)
        before = {name: members[name] for name in attributes if name in members}
        restore.callback(members.update, before)
        members.update({name: attributes[name] for name in before})
        yield


def replace_tensor(module: nn.Module, name: str, tensor: Tensor, restore: ExitStack) -> None:
    """Replace a parameter or buffer until `restore` closes."""
    tensors = _storage_of(module, name)
    restore.callback(tensors.__setitem__, name, tensors[name])
    tensors[name] = tensor


def _storage_of(module: nn.Module, name: str) -> Any:
    """The module's dict that holds this tensor: parameters or buffers."""
    return module._parameters if name in module._parameters else module._buffers
