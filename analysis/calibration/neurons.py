"""The group `gradient`: how much each neuron of an expert writes, and how the loss depends on it.

Neuron c of an expert adds e_c(x) = a_c(x) w_c to its output: a_c is its activation, w_c its column
of down. Over the tokens routed to the expert this keeps, as float64,

    outputs  sum of ||e_c||^2         = ||w_c||^2 * sum of a_c^2
    slopes   sum of (dloss/de_c . u)^2 = sum of (dloss/da_c)^2 / ||w_c||^2,  u = w_c / ||w_c||
    peaks    maximum of ||e_c||       = ||w_c|| * maximum of |a_c|

The first and the last come from the forward pass; backward computes dloss/da_c anyway, and a hook
records it. docs/concepts/heapr.md shows why HEAPr needs only these two sums.
Shape suffixes as in `experts`, and R tokens of one expert, M its neurons.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from analysis.calibration.sums import GroupSums

_ROWS = 256  # of a matrix in float64 at once


def column_squares(experts: nn.Module, expert: int) -> Tensor:
    """(M,) float64: ||w_c||^2 of every column of an expert's down projection."""
    down: Tensor = experts.down_proj[expert]  # type: ignore[index]
    rows_DM = down.detach().T if experts.is_transposed else down.detach()
    return torch.stack([_sum_of_squares(part) for part in torch.split(rows_DM, _ROWS)]).sum(dim=0)


@dataclass(frozen=True, slots=True)
class LayerNeurons:
    """What one batch adds for the neurons of one layer."""

    sums: GroupSums  # with the group `gradient`
    layer: int
    device: torch.device  # where its experts are
    mask_S: Tensor | None  # whether each routed pair's token counts; None: all do
    squares: dict[tuple[int, int], Tensor]  # by layer and expert: cache of `column_squares`

    def _of(self, name: str) -> Tensor:
        return self.sums.of(name, self.layer, self.device)

    def listen(self, experts: nn.Module, expert: int, span: slice, a_RM: Tensor) -> None:
        """Add the activations of one expert now, and their gradient when backward reaches them.

        `span` selects its pairs among the layer's; `a_RM`, on its tokens, is part of the graph.
        """
        real_R = None if self.mask_S is None else self.mask_S[span]
        if real_R is not None and not real_R.any():
            return
        key = self.layer, expert
        if key not in self.squares:
            self.squares[key] = column_squares(experts, expert)
        squares_M = self.squares[key]
        outputs_EM, peaks_EM = self._of("outputs"), self._of("peaks")
        counted_RM = _real_part(a_RM.detach(), real_R, outputs_EM)
        norm_M = squares_M[: counted_RM.shape[1]]
        outputs_EM[expert] += _sum_of_squares(counted_RM) * norm_M
        peaks_M = counted_RM.abs().amax(dim=0).double() * norm_M.sqrt()
        torch.maximum(peaks_EM[expert], peaks_M, out=peaks_EM[expert])
        # The graph holds the hook, so the hook holds no large tensor.
        hook = partial(self._feel, expert, real_R, norm_M)
        a_RM.register_hook(hook)  # type: ignore[no-untyped-call]

    def _feel(self, expert: int, real_R: Tensor | None, norm_M: Tensor, grad_RM: Tensor) -> None:
        slopes_EM = self._of("slopes")
        counted_RM = _real_part(grad_RM.detach(), real_R, slopes_EM)
        squares_M = _sum_of_squares(counted_RM)
        # A neuron with a zero column writes nothing, so the loss does not depend on it.
        slopes_EM[expert] += torch.where(norm_M == 0, 0.0, squares_M / norm_M)


def _real_part(values_RM: Tensor, real_R: Tensor | None, sums_EM: Tensor) -> Tensor:
    """Rows of tokens that count, and columns of neurons that are on disk.

    If a layer's experts differ in width, the narrower ones are loaded padded with zeros.
    """
    rows_RM = values_RM if real_R is None else values_RM[real_R]
    return rows_RM[:, : sums_EM.shape[1]]


def _sum_of_squares(values_RM: Tensor) -> Tensor:
    # Many times faster on a CPU than `vector_norm` with a dtype. copy=True: squared in place.
    return values_RM.to(torch.float64, copy=True).square_().sum(dim=0)
