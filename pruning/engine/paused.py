"""Plans on a layer whose experts are loaded in blocks: forwards pause at the experts.

Outputs are those of transformers' grouped products for all experts at once, bit for bit.
Shape suffixes: T tokens, K experts per token, S = T*K routed pairs, R those of a block, D model
width, X any.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from analysis.calibration.blocks import ExpertsInput, input_of, output_given
from analysis.calibration.hidden import ForwardStates
from analysis.calibration.loading import (
    DTYPES,
    CalibrationSettings,
    experts_option,
    resolve_dtype,
)
from analysis.errors import UnsupportedModelError
from analysis.model.forwards import other_forwards
from analysis.model.loaded_block import loaded_block
from analysis.model.moe_model import MoEModel

_GROUPED = "grouped_mm"  # transformers' name of its products of all experts


def check_products(model: MoEModel, settings: CalibrationSettings) -> None:
    """Refuse a dtype in which experts cannot run in blocks, before a model is loaded."""
    dtype = resolve_dtype(settings.dtype, model)
    if experts_option(DTYPES[dtype]):
        raise _no_products(dtype)


def _no_products(dtype: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Experts cannot run in blocks in {dtype}, for which transformers has no grouped "
        "products; choose another --dtype, such as bfloat16 or float32."
    )


@dataclass(frozen=True, slots=True)
class PausedPlans:
    """Forwards of a layer, by name."""

    experts: nn.Module
    blocks: Sequence[range]
    states: ForwardStates  # what the experts get and give
    device: torch.device

    def __post_init__(self) -> None:
        config: Any = self.experts.config
        if config._experts_implementation != _GROUPED:
            raise _no_products(str(config.dtype).removeprefix("torch."))

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Run a forward as far as its experts."""
        given = input_of(self.experts, run)
        self.states.put(f"{name}-hidden", given.hidden_TD)
        self.states.put(f"{name}-index", given.index_TK)
        self.states.put(f"{name}-weights", given.weights_TK)

    def add(self, name: str, candidate: AbstractContextManager[None]) -> None:
        """Run the experts whose weights are in place, as a candidate has them."""
        with torch.no_grad(), other_forwards([self.experts], [self._run]), candidate:
            self.experts.forward(name)

    def _run(self, name: str) -> None:
        """Keep what the experts give, before gate weights: each pair as a token of its own."""
        index_TK, block = self._get(name, "index"), loaded_block(self.experts)
        pair_R = _pairs(index_TK, block)
        if not len(pair_R):
            return
        id_R = index_TK.reshape(-1)[pair_R] - block.start
        # The sort of the function that runs may change the order of equal ids even so: undone here.
        place_R = torch.sort(id_R).indices
        hidden_RD = self._get(name, "hidden")[pair_R // index_TK.shape[1]]
        x_RD = torch.empty_like(hidden_RD)
        x_RD[place_R] = hidden_RD
        module = _Block(self.experts, int((index_TK < block.start).sum()), index_TK.numel())
        f_RD = type(self.experts).forward(module, x_RD, id_R[:, None], x_RD.new_ones(len(id_R), 1))
        self.states.put(f"{name}-{block.start}", f_RD[place_R].to(self._dtype))

    def finish(self, name: str, run: Callable[[], Tensor]) -> Tensor:
        """Run a forward again, with what the experts gave."""
        with output_given(self.experts, self.output(name)):
            return run()

    def given(self, name: str) -> ExpertsInput:
        """What the experts get in a forward."""
        return ExpertsInput(*(self._get(name, part) for part in ("hidden", "index", "weights")))

    def output(self, name: str) -> Tensor:
        """What the experts give in a forward, once all blocks ran."""
        index_TK, weights_TK = self._get(name, "index"), self._get(name, "weights")
        hidden_TD = self._get(name, "hidden")
        f_SD = hidden_TD.new_empty(index_TK.numel(), hidden_TD.shape[1], dtype=self._dtype)
        for block in self.blocks:
            pair_R = _pairs(index_TK, block)
            if len(pair_R):
                f_SD[pair_R] = self._get(name, str(block.start))
        weighted_SD = f_SD * weights_TK.reshape(-1, 1)
        return weighted_SD.view(*index_TK.shape, -1).sum(dim=1).to(hidden_TD.dtype)

    @property
    def _dtype(self) -> torch.dtype:
        down: Any = self.experts.down_proj  # of a candidate, no parameter
        return down.dtype  # type: ignore[no-any-return]

    def _get(self, name: str, part: str) -> Tensor:
        return self.states.get(f"{name}-{part}").to(self.device)


def _pairs(index_TK: Tensor, block: range) -> Tensor:
    """(R,) places in the flattened (T, K) arrays of pairs with an expert of a block.

    In the order in which transformers sorts all pairs by expert: rounding depends on the place of a
    row, and sorts of processors with AVX-512 leave equal experts in no order of their own.
    """
    index_S = index_TK.reshape(-1)
    sorted_S, order_S = torch.sort(index_S)
    return order_S[(sorted_S >= block.start) & (sorted_S < block.stop)]


class _Block:
    """The experts whose weights are in place, as transformers' function takes a module.

    Functions of single values run on an array as large as that of all experts, with the rows where
    they are there: kernels round the end of an array in another way than the rest.
    """

    def __init__(self, experts: nn.Module, start: int, rows: int) -> None:
        """`start`: the place of the first row, sorted by expert, among all `rows`."""
        self._experts = experts
        self._start, self._rows = start, rows
        self.num_experts = len(loaded_block(experts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experts, name)

    def _apply_gate(self, both_RX: Tensor) -> Tensor:
        return self._among_all("_apply_gate", both_RX)

    def act_fn(self, inner_RX: Tensor) -> Tensor:
        """The activation of neurons."""
        return self._among_all("act_fn", inner_RX)

    def post_expert_norm(self, f_RD: Tensor) -> Tensor:
        """The norm of outputs, where there is one."""
        return self._among_all("post_expert_norm", f_RD)

    def _among_all(self, function: str, values_RX: Tensor) -> Tensor:
        place = slice(self._start, self._start + len(values_RX))
        values_SX = values_RX.new_zeros(self._rows, values_RX.shape[1])
        values_SX[place] = values_RX
        result_SX: Tensor = getattr(self._experts, function)(values_SX)
        return result_SX[place]
