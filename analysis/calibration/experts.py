"""The experts function that computes a layer's output and accumulates statistics in one pass.

It is registered in transformers' experts interface, so it receives the gate weights that the
model really applies, and every (token, expert) pair is computed once. Shape suffixes: T tokens,
K experts per token, S = T*K routed pairs, E experts, D model width, M moments.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from analysis.errors import UnsupportedModelError
from analysis.families import MoELayer
from analysis.model import MoEModel
from analysis.stats import EXPONENTS, GATES, MOMENT_COLUMNS, Gate, moment_column

IMPLEMENTATION = "moeprune_statistics"


class RoutedSums:
    """Sums over routed tokens, by layer; float64, on the device of the layer's experts.

    Args:
        layers: the sparse layers.
        hidden_size: width of an expert's output.
    """

    def __init__(self, layers: tuple[MoELayer, ...], hidden_size: int) -> None:
        self.moments_EM = {
            layer.index: torch.zeros(layer.num_experts, len(MOMENT_COLUMNS), dtype=torch.float64)
            for layer in layers
        }
        self.vectors_ED = {
            layer.index: torch.zeros(layer.num_experts, hidden_size, dtype=torch.float64)
            for layer in layers
        }

    def to_device(self, layer: int, device: torch.device) -> None:
        """Keep a layer's sums where its experts are."""
        self.moments_EM[layer] = self.moments_EM[layer].to(device)
        self.vectors_ED[layer] = self.vectors_ED[layer].to(device)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, on the CPU; what a resume needs."""
        return {
            **{f"moments.{layer}": value.cpu() for layer, value in self.moments_EM.items()},
            **{f"vectors.{layer}": value.cpu() for layer, value in self.vectors_ED.items()},
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        for layer in self.moments_EM:
            self.moments_EM[layer] = tensors[f"moments.{layer}"]
            self.vectors_ED[layer] = tensors[f"vectors.{layer}"]


@dataclass(slots=True)
class _Collection:
    """What the experts function needs to know while collection is on.

    Args:
        layer_of: decoder index of each experts module.
        sums: where to add.
        mask_T: True at real tokens of the current batch; None when nothing is padded.
    """

    layer_of: Mapping[nn.Module, int]
    sums: RoutedSums
    mask_T: Tensor | None = None


_ACTIVE: ContextVar[_Collection | None] = ContextVar("moeprune_collection", default=None)


def _project(x_RD: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor:
    if transposed:
        product = x_RD @ weight
        return product if bias is None else product + bias
    return functional.linear(x_RD, weight, bias)


def _expert_output(experts: nn.Module, expert: int, x_RD: Tensor) -> Tensor:
    """f of one expert on its tokens, before the gate weight."""
    name = "gate_up_proj" if experts.has_gate else "up_proj"
    first_bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    second_bias = experts.down_proj_bias[expert] if experts.has_bias else None  # type: ignore[index]
    transposed = bool(experts.is_transposed)
    inner = _project(x_RD, getattr(experts, name)[expert], first_bias, transposed=transposed)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)  # type: ignore[operator]
    weight: Tensor = experts.down_proj[expert]  # type: ignore[index]
    output = _project(inner, weight, second_bias, transposed=transposed)
    if getattr(experts, "has_post_expert_norm", False):
        normed: Tensor = experts.post_expert_norm(output)  # type: ignore[operator]
        return normed
    return output


def _gates(weights_TK: Tensor, gate: Gate) -> Tensor:
    weights = weights_TK.double()
    if gate == "applied":
        return weights
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total == 0, 0.0, weights / total)


def _moments(weights_TK: Tensor, order_S: Tensor, norms_S: Tensor) -> Tensor:
    """(S, M) float64: the terms of MOMENT_COLUMNS for each routed pair, in sorted order."""
    powers = {beta: norms_S**beta for beta in EXPONENTS}
    terms: dict[str, Tensor] = {}
    for gate in GATES:
        gates_S = _gates(weights_TK, gate).reshape(-1)[order_S]
        for alpha in EXPONENTS:
            for beta in EXPONENTS:
                terms[moment_column(alpha, beta, gate)] = gates_S**alpha * powers[beta]
    return torch.stack([terms[column] for column in MOMENT_COLUMNS], dim=-1)


@dataclass(frozen=True, slots=True)
class _Routing:
    """Routed pairs sorted by expert, and by token within an expert.

    Args:
        expert_S, token_S: expert and token of each pair.
        order_S: position of each pair in the flattened (T, K) arrays.
        counts: pairs of each expert.
    """

    expert_S: Tensor
    token_S: Tensor
    order_S: Tensor
    counts: list[int]


def _route(index_TK: Tensor, num_experts: int) -> _Routing:
    expert_S, order_S = torch.sort(index_TK.reshape(-1), stable=True)
    # Ids beyond the last expert stand for experts of another process. They sort to the end.
    counts = torch.bincount(expert_S, minlength=num_experts)[:num_experts].tolist()
    routed = slice(sum(counts))
    order_S = order_S[routed]
    return _Routing(expert_S[routed], order_S // index_TK.shape[-1], order_S, counts)


class _Recorder:
    """Adds one layer's share of a batch to the sums, outside of any gradient."""

    def __init__(self, collection: _Collection, layer: int, routing: _Routing) -> None:
        self._routing = routing
        self._layer = layer
        self._sums = collection.sums
        self._sums.to_device(layer, routing.token_S.device)
        mask_T = collection.mask_T
        self._mask_S = None if mask_T is None else mask_T[routing.token_S]
        self._norms_S = torch.zeros(
            len(routing.token_S), dtype=torch.float64, device=routing.token_S.device
        )

    @torch.no_grad()
    def add(self, expert: int, span: slice, f_RD: Tensor) -> None:
        """Norms and vector sum of one expert's outputs."""
        wide = torch.promote_types(f_RD.dtype, torch.float32)
        self._norms_S[span] = torch.linalg.vector_norm(f_RD, dim=-1, dtype=wide).double()
        real_RD = f_RD if self._mask_S is None else f_RD[self._mask_S[span]]
        self._sums.vectors_ED[self._layer][expert] += real_RD.sum(dim=0, dtype=torch.float64)

    @torch.no_grad()
    def close(self, weights_TK: Tensor) -> None:
        """The fifteen sums of every expert."""
        terms_SM = _moments(weights_TK, self._routing.order_S, self._norms_S)
        if self._mask_S is not None:
            # Not multiplied by the mask: padding may overflow.
            terms_SM.masked_fill_(~self._mask_S[:, None], 0.0)
        self._sums.moments_EM[self._layer].index_add_(0, self._routing.expert_S, terms_SM)


def _recorder(experts: nn.Module, routing: _Routing) -> _Recorder | None:
    collection = _ACTIVE.get()
    # Under activation checkpointing the same tokens come again inside backward.
    if collection is None or torch._C._current_graph_task_id() != -1:
        return None
    return _Recorder(collection, collection.layer_of[experts], routing)


def _collecting_experts(
    experts: nn.Module, hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor
) -> Tensor:
    """Output of the routed experts, as the stock loop computes it; sums are added on the way."""
    routing = _route(index_TK, int(experts.num_experts))  # type: ignore[arg-type]
    recorder = _recorder(experts, routing)
    weights_S = weights_TK.reshape(-1)[routing.order_S]
    output_TD = torch.zeros_like(hidden_TD)
    start = 0
    for expert, count in enumerate(routing.counts):
        if count == 0:
            continue
        span = slice(start, start + count)
        start += count
        rows = routing.token_S[span]
        f_RD = _expert_output(experts, expert, hidden_TD[rows])
        weighted_RD = f_RD * weights_S[span, None]
        output_TD.index_add_(0, rows, weighted_RD.to(output_TD.dtype))
        if recorder:
            recorder.add(expert, span, f_RD)
    if recorder:
        recorder.close(weights_TK)
    return output_TD


def _experts_modules(model: PreTrainedModel, described: MoEModel) -> dict[nn.Module, int]:
    found: dict[nn.Module, int] = {}
    for layer in described.layers:
        path = described.family.experts_module(layer.index)
        module = model.get_submodule(path)
        if not hasattr(module, "has_gate"):
            raise UnsupportedModelError(
                f"The experts of {described.family.label} at {path} do not go through "
                "transformers' experts interface, so their statistics cannot be collected."
            )
        found[module] = layer.index
    return found


@contextmanager
def collecting(model: PreTrainedModel, described: MoEModel, sums: RoutedSums) -> Iterator[None]:
    """While open, every forward of `model` adds to `sums`; use `batch_mask` for padded batches."""
    if IMPLEMENTATION not in ALL_EXPERTS_FUNCTIONS:
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _collecting_experts)
    previous = model.config._experts_implementation
    token = _ACTIVE.set(_Collection(_experts_modules(model, described), sums))
    model.set_experts_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_experts_implementation(previous)
        _ACTIVE.reset(token)


def batch_mask(mask_BT: Tensor | None) -> None:
    """Say which positions of the next forward are real tokens; None: all of them."""
    collection = _ACTIVE.get()
    if collection is None:
        raise ValueError("batch_mask outside of collecting()")
    collection.mask_T = None if mask_BT is None else mask_BT.reshape(-1)
