"""Expert parallel runs: every process holds a contiguous block of each layer's experts.

All processes feed the same batches; transformers sums the outputs of the blocks (`all_reduce`), and
the statistics are joined along the experts. Its other modes do not work here: `all_to_all` passes
gate weights of 1, and experts cut along their width (tensor parallel) give partial sums, whose
norms mean nothing. Every process holds everything but the experts in full.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import AllReduceEP, EPImplementationInterface

from analysis.calibration.distributed import Processes, Sums
from analysis.calibration.recording import WHOLE_WEIGHTS
from analysis.calibration.sums import GroupSums
from analysis.errors import UnsupportedModelError
from analysis.model import MoEModel
from analysis.stats.groups import Group

_IMPLEMENTATION = "moeprune_all_reduce"
_EXPERT_AXIS = {"moments": 1, "vectors": 0}


class _AllReduce(AllReduceEP):  # type: ignore[misc]
    """Keeps the gate weights of all experts: a process sees only those of its own block."""

    def __call__(self, hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
        token = WHOLE_WEIGHTS.set(weights_TK)
        try:
            output: Tensor = super().__call__(hidden_TD, index_TK, weights_TK)
        finally:
            WHOLE_WEIGHTS.reset(token)
        return output


def check_divides(model: MoEModel, processes: Processes, groups: Sequence[Group]) -> None:
    """Refuse a run whose experts cannot be split evenly between these processes."""
    counts = {layer.num_experts for layer in model.layers}
    common = [n for n in range(2, min(counts) + 1) if all(count % n == 0 for count in counts)]
    numbers = ", ".join(map(str, common)) or "none"
    if processes.world == 1:
        raise UnsupportedModelError(
            "--expert-parallel splits the experts between processes that torchrun starts: "
            "torchrun --nproc-per-node N -m app.cli calibrate ...; values of N that work for "
            f"{model.name}: {numbers}."
        )
    if processes.world not in common:
        raise UnsupportedModelError(
            f"{' and '.join(map(str, sorted(counts)))} experts cannot be split evenly between "
            f"{processes.world} processes; values of --nproc-per-node that work: {numbers}."
        )
    if tuple(groups) != ("routed",):
        raise UnsupportedModelError(
            "With --expert-parallel no process sees all experts of a layer, so only the group "
            "routed can be collected."
        )


def loading_options(model: MoEModel, processes: Processes, *, trust: bool) -> dict[str, Any]:
    """Arguments of `from_pretrained` that make this process load its block of experts."""
    config = AutoConfig.from_pretrained(model.checkpoint.path, trust_remote_code=trust)
    plan = getattr(config, "base_model_ep_plan", None) or {}
    if "ep_dispatch_experts" not in plan.values():
        raise UnsupportedModelError(
            f"transformers cannot split the experts of {model.family.label} between processes; "
            "leave out --expert-parallel: the processes then split the batches."
        )
    # Attention and the rest stay whole: split across processes they would round differently.
    config.base_model_tp_plan = {}
    EPImplementationInterface.register(_IMPLEMENTATION, _AllReduce)
    world = processes.world
    dealt = DistributedConfig(tp_size=world, ep_size=world, ep_implementation=_IMPLEMENTATION)
    return {"config": config, "distributed_config": dealt}


def block_sums(model: MoEModel, processes: Processes) -> GroupSums:
    """Zeroed sums for the experts of one process."""
    layers = [
        replace(layer, num_experts=count, top_k=min(layer.top_k, count), num_groups=1)
        for layer in model.layers
        for count in [layer.num_experts // processes.world]
    ]
    return GroupSums(layers, model.expert_output_size)


def joined(parts: Sequence[Sums]) -> dict[str, Tensor]:
    """The sums of all experts, from those of the processes' blocks by rank; empty without any."""
    return {
        name: torch.cat([part[name] for part in parts], dim=_EXPERT_AXIS[name.partition(".")[0]])
        for name in (parts[0] if parts else {})
    }
