"""What the experts of every layout compute, one token and one expert at a time.

Written from the papers' formulas and the layout of the tensors; nothing is batched, sorted or
shared with the program. `Sums` also adds up the statistics on the way.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

# (gate convention, exponent of the gate, exponent of the norm) -> column, written out by hand.
_EXPONENTS = [(alpha, beta) for alpha in (1, 2) for beta in (0, 1, 2)]
COLUMNS = {
    ("applied", 0, 0): "num_tokens",
    ("applied", 0, 1): "g0_f1",
    ("applied", 0, 2): "g0_f2",
    **{("applied", a, b): f"applied_g{a}_f{b}" for a, b in _EXPONENTS},
    **{("renormalized", a, b): f"renormalized_g{a}_f{b}" for a, b in _EXPONENTS},
}


@dataclass(frozen=True)
class Matrices:
    """The matrices of one expert, each (inputs, outputs), and its biases."""

    gate: Tensor | None  # None where the expert has no gate
    up: Tensor
    down: Tensor
    gate_bias: Tensor | float = 0.0
    up_bias: Tensor | float = 0.0
    down_bias: Tensor | float = 0.0


def _standard(experts: nn.Module, e: int) -> Matrices:
    gate, up = experts.gate_up_proj[e].detach().chunk(2)
    return Matrices(gate.T, up.T, experts.down_proj[e].detach().T)


def _transposed(experts: nn.Module, e: int) -> Matrices:
    both = experts.gate_up_proj[e].detach()
    width = both.shape[1] // 2
    return Matrices(both[:, :width], both[:, width:], experts.down_proj[e].detach())


def _interleaved(experts: nn.Module, e: int) -> Matrices:
    both = experts.gate_up_proj[e].detach()
    bias = experts.gate_up_proj_bias[e].detach()
    down, down_bias = experts.down_proj[e].detach(), experts.down_proj_bias[e].detach()
    return Matrices(both[:, 0::2], both[:, 1::2], down, bias[0::2], bias[1::2], down_bias)


def _ungated(experts: nn.Module, e: int) -> Matrices:
    return Matrices(None, experts.up_proj[e].detach().T, experts.down_proj[e].detach().T)


_TRANSPOSED = ("aria", "aria_text", "gpt_oss")
_LAYOUTS: dict[str, Callable[[nn.Module, int], Matrices]] = {
    "aria": _transposed,
    "aria_text": _transposed,
    "gpt_oss": _interleaved,
    "nemotron_h": _ungated,
}


def matrices_of(model_type: str, experts: nn.Module, expert: int) -> Matrices:
    """The matrices of one expert of a loaded experts module."""
    return _LAYOUTS.get(model_type, _standard)(experts, expert)


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def activations(model_type: str, experts: nn.Module, m: Matrices, x: Tensor) -> Tensor:
    """What each neuron of an expert with these matrices multiplies its column of down by."""
    up = x @ m.up + m.up_bias
    if m.gate is None:  # Nemotron-H: squared ReLU
        return torch.where(up > 0, up, 0.0) ** 2
    if model_type == "gpt_oss":
        gate = (x @ m.gate + m.gate_bias).clamp(max=experts.limit)
        inner = (up.clamp(-experts.limit, experts.limit) + 1) * gate
        return inner / (1 + torch.exp(-experts.alpha * gate))
    if model_type.startswith("minimax_m3"):  # the same without biases
        gate = (x @ m.gate).clamp(max=experts.swiglu_limit)
        up = up.clamp(-experts.swiglu_limit, experts.swiglu_limit)
        return (up + 1) * gate / (1 + torch.exp(-experts.swiglu_alpha * gate))
    gate = x @ m.gate + m.gate_bias
    if model_type == "deepseek_v4":
        limit = experts.limit
        return _silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if limit := getattr(experts, "swiglu_limit", None):
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if model_type == "beam":  # in float32, whatever the dtype
        return (_silu(gate.float()) * up.float()).to(x.dtype)
    if model_type.startswith("gemma4"):
        return _gelu_tanh(gate) * up
    return _silu(gate) * up


def expert_output(model_type: str, experts: nn.Module, expert: int, x: Tensor) -> Tensor:
    """f of one expert on one token, before the gate weight."""
    m = matrices_of(model_type, experts, expert)
    return activations(model_type, experts, m, x) @ m.down + m.down_bias


class Sums:
    """The statistics of one layer, added up over (token, expert) pairs.

    Args:
        model_type: whose layout and activation.
        experts: the loaded experts module.
    """

    def __init__(self, model_type: str, experts: nn.Module) -> None:
        self.model_type = model_type
        self.experts = experts
        width = experts.down_proj.shape[2 if model_type in _TRANSPOSED else 1]
        self.sums = [dict.fromkeys(COLUMNS, 0.0) for _ in range(experts.num_experts)]
        self.largest = [0.0] * experts.num_experts
        self.vectors = torch.zeros(experts.num_experts, width, dtype=torch.float64)

    def add(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Add these tokens, and return what the layer gives for them."""
        output = torch.zeros_like(hidden)
        for token in range(len(hidden)):
            gates = [float(weight) for weight in weights[token]]
            for expert, gate in zip(index[token].tolist(), gates, strict=True):
                f = expert_output(self.model_type, self.experts, expert, hidden[token])
                output[token] += gate * f
                self._add(expert, {"applied": gate, "renormalized": gate / sum(gates)}, f)
        return output

    def _add(self, expert: int, gates: dict[str, float], f: Tensor) -> None:
        norm = math.sqrt(math.fsum(value * value for value in f.tolist()))
        for convention, alpha, beta in COLUMNS:
            term = gates[convention] ** alpha * norm**beta
            self.sums[expert][convention, alpha, beta] += term
        self.vectors[expert] += f
        self.largest[expert] = max(self.largest[expert], *map(abs, f.tolist()))


@contextmanager
def plain_experts(model_type: str, modules: dict[int, nn.Module]) -> Iterator[dict[int, Sums]]:
    """Inside the block these experts modules (by layer) compute in the double loop."""
    plain = {layer: Sums(model_type, module) for layer, module in modules.items()}
    for layer, module in modules.items():
        module.forward = plain[layer].add
    try:
        yield plain
    finally:
        for module in modules.values():
            del module.forward


@contextmanager
def overheard(model_type: str, layers: tuple[int, ...], padding: int) -> Iterator[dict[int, Sums]]:
    """Inside the block, whatever the experts of any model receive also goes to the double loop.

    Nothing is asked of the program that runs the model: torch itself is listened to. Positions
    whose token is `padding` are left out.
    """
    found: dict[nn.Module, Sums] = {}
    sums: dict[int, Sums] = {}
    real = torch.empty(0, dtype=torch.bool)

    def listen(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal real
        if isinstance(module, nn.Embedding):
            real = (inputs[0] != padding).reshape(-1)
        elif hasattr(module, "has_gate") and hasattr(module, "num_experts"):
            if module not in found:
                sums[layers[len(found)]] = found[module] = Sums(model_type, module)
            found[module].add(*(tensor.detach()[real] for tensor in inputs))

    handle = register_module_forward_pre_hook(listen)
    try:
        yield sums
    finally:
        handle.remove()
