"""What a router would choose without an expert: its forward, rerun on the tokens that chose it.

This assumes only which of the router's tensors have an entry per expert, so the answer is that of
the pruned model, whatever the router does with its scores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from analysis.errors import StatsError, UnsupportedModelError
from analysis.families.base import MoEFamily, MoELayer
from analysis.model.forwards import Forward, wrap_forward
from analysis.model.routing import Holder, RouterParts, cut, replace_tensor

# (expert, rows of the tokens) -> (rows, K') ids and gate weights without that expert.
Without = Callable[[int, Tensor], tuple[Tensor, Tensor]]
# (what the router returned, what it would return) -> None
Listener = Callable[[tuple[Tensor, ...], Without], None]


def check_removable(family: MoEFamily, layer: MoELayer) -> None:
    """Refuse a router that cannot work with one expert removed.

    A layer left with fewer than top_k experts selects all of them.
    """
    left_in_group = layer.num_experts // layer.num_groups - 1
    needs_group = layer.least_per_group > 1 and left_in_group < layer.least_per_group
    if needs_group or layer.num_experts - 1 < family.always_selected(layer.top_k):
        raise StatsError(
            f"The router of layer {layer.index} needs all of its {layer.num_experts} experts, so "
            "the damage of removing one is undefined; leave out the group damage."
        )


class Removal:
    """One layer's router, rerun without an expert.

    A router that chooses among groups masks the expert inside its group instead of cutting it out,
    which would change the groups.
    """

    def __init__(self, parts: RouterParts, layer: MoELayer) -> None:
        self._parts = parts
        self._layer = layer
        self._expert: int | None = None  # currently removed
        self._logits: Tensor | None = None  # of the current forward

    def attach(self, listener: Listener, restore: ExitStack) -> None:
        """Call `listener` after every forward of the router until `restore` closes."""
        for holder in self._parts.holders:
            if holder.module not in (self._parts.router, self._parts.block):
                wrap_forward(holder.module, partial(self._wrap_part, holder), restore)
        wrap_forward(self._parts.router, partial(self._wrap_router, listener), restore)

    def _wrap_part(self, holder: Holder, inner: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with self._without_expert(holder):
                return inner(*args, **kwargs)

        return forward

    def _wrap_router(self, listener: Listener, inner: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with _Logits(self._layer.num_experts) as recorded:
                result = inner(*args, **kwargs)
            self._logits = recorded.logits

            def without(expert: int, rows: Tensor) -> tuple[Tensor, Tensor]:
                self._expert = expert
                try:
                    return self._rerun(inner, args, kwargs, rows)
                finally:
                    self._expert = None

            try:
                listener(result, without)
            finally:
                self._logits = None  # (T, E): not kept while the other layers run
            return result

        return forward

    def _rerun(
        self, inner: Forward, args: Sequence[Any], kwargs: Mapping[str, Any], rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = args[0].reshape(-1, args[0].shape[-1])
        tokens, hidden = len(hidden), hidden.index_select(0, rows)
        # Some routers take (batch, tokens, D), and nothing else.
        hidden = hidden.reshape(*[1] * (args[0].dim() - 2), *hidden.shape)
        others = [self._argument(value, rows, tokens) for value in args[1:]]
        keywords = {name: self._argument(value, rows, tokens) for name, value in kwargs.items()}
        with self._without_expert(self._holder_of(self._parts.router)), self._stored_logits(rows):
            *_, gates, ids = inner(hidden, *others, **keywords)
        return ids if self._masks else self._kept_ids(ids.device)[ids], gates

    @property
    def _masks(self) -> bool:
        return self._layer.num_groups > 1

    def _kept_ids(self, device: torch.device) -> Tensor:
        """Ids of the experts that are left."""
        everyone = torch.arange(self._layer.num_experts, device=device)
        return everyone[everyone != self._expert]

    def _holder_of(self, module: nn.Module) -> Holder:
        holders = (holder for holder in self._parts.holders if holder.module is module)
        return next(holders, Holder(module, {}))

    def _argument(self, value: Any, rows: Tensor, tokens: int) -> Any:
        """A further argument of the router; the block's own tensors lose the expert's entry.

        Integers, one for each of the `tokens`, are token ids.
        """
        if not isinstance(value, Tensor):
            return value
        if value.numel() == tokens and not value.is_floating_point():
            return value.reshape(-1).index_select(0, rows)
        holder = self._holder_of(self._parts.block)
        for name, tensor in holder.tensors():
            if tensor is value:
                return self._reduced_tensor(holder, name, tensor)
        raise UnsupportedModelError(
            f"The router of layer {self._layer.index} takes a tensor that the table of families "
            "does not list, so it cannot run without an expert; leave out the group damage."
        )

    def _reduced_tensor(self, holder: Holder, name: str, tensor: Tensor) -> Tensor:
        axis = holder.axes[name]
        if not self._masks:
            return tensor.index_select(axis, self._kept_ids(tensor.device))
        index = torch.tensor([self._expert], device=tensor.device)
        return tensor.index_fill(axis, index, -torch.inf)

    @contextmanager
    def _without_expert(self, holder: Holder) -> Iterator[None]:
        """The module without the currently removed expert, if any."""
        with ExitStack() as restore:
            if self._expert is not None and not self._masks:
                weight = next(holder.module.parameters(), torch.empty(0))
                restore.enter_context(cut(holder, self._kept_ids(weight.device)))
            elif self._expert is not None:
                for name, tensor in tuple(holder.tensors()):
                    # The matrix stays whole: its product is masked.
                    if (holder.module, name) != self._parts.matrix:
                        reduced = self._reduced_tensor(holder, name, tensor)
                        replace_tensor(holder.module, name, reduced, restore)
            yield

    @contextmanager
    def _stored_logits(self, rows: Tensor) -> Iterator[None]:
        """The router's logits without the expert, from those already computed.

        They equal recomputed ones up to rounding and save the product.
        """
        if self._logits is None and not self._masks:
            yield
            return
        if self._logits is None:
            raise UnsupportedModelError(
                f"The router of layer {self._layer.index} computes its logits in a way that "
                "cannot be masked inside a group; leave out the group damage."
            )
        logits = self._logits.reshape(-1, self._layer.num_experts).index_select(0, rows)
        if self._masks:
            logits[:, self._expert] = -torch.inf
        else:
            logits = logits.index_select(1, self._kept_ids(logits.device))
        with _Logits(logits.shape[-1], logits):
            yield


class _Logits(TorchFunctionMode):
    """While active, records the first linear map onto the experts, or replaces it by `logits`."""

    def __init__(self, num_experts: int, logits: Tensor | None = None) -> None:
        super().__init__()
        self._num_experts = num_experts
        self._is_given = logits is not None
        self._is_done = False
        self.logits = logits

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not functional.linear or self._is_done:
            return func(*args, **kwargs)
        weight = kwargs["weight"] if "weight" in kwargs else args[1]
        if len(weight) != self._num_experts:
            return func(*args, **kwargs)
        self._is_done = True
        if not self._is_given:
            self.logits = func(*args, **kwargs)
        return self.logits
