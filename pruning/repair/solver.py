"""Least squares for the down projections of one layer, all kept experts together.

The block's routed output is the sum over experts of gate weight times down times activations: it
is linear in all down projections at once. Changes of them are fitted to what the output lacks, with
a penalty on their size. The system has experts x neurons unknowns for each output column and is
never formed: conjugate gradients need its products only, two passes over the tokens, and each
expert's own Gram matrix preconditions it.

Shape suffixes: K kept experts, M neurons of an expert, D model width, C some of its columns, T
tokens, R rows of one expert (the tokens routed to it).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ITERATIONS = 4  # more gain nothing on held-out text
DAMPINGS = (0.01, 0.1, 1.0)  # candidates, as shares of the mean diagonal of the Gram matrices
_MOST_COLUMNS = 16  # of the output, on which a damping is chosen
MOST_ELEMENTS = 1 << 24  # of an array of unknowns: experts x neurons x columns


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What the kept experts do on some tokens, and what their sum lacks."""

    residual_TD: Tensor  # what the routed output should be larger by
    scaled: tuple[Tensor, ...]  # (R, M) of each expert: activations times gate weight
    tokens: tuple[Tensor, ...]  # (R,) of each expert: the token of each row

    @property
    def size(self) -> Tensor:
        """How many tokens there are."""
        return torch.tensor(len(self.residual_TD))

    def output(self, change_KMC: Tensor) -> Tensor:
        """(T, C): what a change of the transposed down projections adds to the output."""
        added_TC = self.residual_TD.new_zeros(len(self.residual_TD), change_KMC.shape[2])
        for change_MC, scaled_RM, token_R in zip(change_KMC, self.scaled, self.tokens, strict=True):
            added_TC.index_add_(0, token_R, scaled_RM @ change_MC)
        return added_TC

    def gathered(self, values_TC: Tensor) -> Tensor:
        """(K, M, C): the sum over tokens of activations times these values."""
        neurons = self.scaled[0].shape[1]
        sums_KMC = values_TC.new_empty(len(self.scaled), neurons, values_TC.shape[1])
        for sum_MC, scaled_RM, token_R in zip(sums_KMC, self.scaled, self.tokens, strict=True):
            torch.mm(scaled_RM.T, values_TC[token_R], out=sum_MC)
        return sums_KMC


@dataclass(frozen=True, eq=False)
class System:
    """The normal equations of some rows; `total` adds up what several processes have."""

    parts: Sequence[Rows]
    total: Callable[[Tensor], Tensor] = lambda sums: sums

    @cached_property
    def grams_KMM(self) -> Tensor:
        """The Gram matrix of each expert's scaled activations, float64."""
        return self._sum(
            torch.stack([(scaled_RM.T @ scaled_RM).double() for scaled_RM in part.scaled])
            for part in self.parts
        )

    @cached_property
    def scale(self) -> float:
        """Mean of the diagonal of all Gram matrices, of which dampings are shares."""
        squares = self._sum(
            torch.stack([scaled_RM.square().sum(1).double().sum() for scaled_RM in part.scaled])
            for part in self.parts
        )
        return float(squares.mean()) / self.parts[0].scaled[0].shape[1]

    def target(self, columns: Tensor) -> Tensor:
        """(K, M, C): the right side for some columns of the output."""
        return self._gathered([part.residual_TD[:, columns] for part in self.parts])

    def _gathered(self, values: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.parts, values, strict=True)
        return self._sum(part.gathered(values_TC) for part, values_TC in pairs)

    def _sum(self, parts: Iterable[Tensor]) -> Tensor:
        first, *others = parts
        for other in others:
            first += other
        return self.total(first)

    def inverse(self, damping: float) -> Tensor:
        """(K, M, M): the inverse of each expert's damped Gram matrix."""
        damped_KMM = self.grams_KMM.clone()
        torch.diagonal(damped_KMM, dim1=1, dim2=2).add_(damping * self.scale)
        factor_KMM = torch.linalg.cholesky(damped_KMM)
        return torch.cholesky_inverse(factor_KMM.to(self.parts[0].residual_TD))

    def solve(
        self,
        columns: Tensor,
        dampings: Sequence[float],
        inverses: Sequence[Tensor],
        iterations: int = ITERATIONS,
    ) -> Tensor:
        """The change of some columns by each damping, (K, M, dampings x C), in one go.

        An inverse, (K, M, M), preconditions: any, near or far, gives the same solution with enough
        iterations. Each column has its own step sizes.
        """
        size_C = torch.tensor(dampings).double().repeat_interleave(len(columns)).to(columns.device)
        size_C *= self.scale
        left_KMC = self.target(columns.repeat(len(dampings)))
        change_KMC, direction_KMC = torch.zeros_like(left_KMC), torch.zeros_like(left_KMC)
        size, before_C = size_C.to(left_KMC), torch.zeros_like(size_C)
        for iteration in range(iterations):
            pairs = zip(inverses, torch.split(left_KMC, len(columns), 2), strict=True)
            better_KMC = torch.cat([inverse_KMM @ part for inverse_KMM, part in pairs], 2)
            slope_C = _dot(left_KMC, better_KMC)
            direction_KMC = direction_KMC.mul_(_ratio(slope_C, before_C).to(size)).add_(better_KMC)
            outputs = [part.output(direction_KMC) for part in self.parts]
            squares_C = self._sum(_dot(output_TC[None], output_TC[None]) for output_TC in outputs)
            squares_C = squares_C + size_C * _dot(direction_KMC, direction_KMC)
            step_C = _ratio(slope_C, squares_C).to(size)
            change_KMC.addcmul_(step_C, direction_KMC)
            if iteration + 1 < iterations:  # the last step needs no second pass over the tokens
                image_KMC = self._gathered(outputs).addcmul_(size, direction_KMC)
                left_KMC.addcmul_(step_C, image_KMC, value=-1)
            before_C = slope_C
        return change_KMC


def _dot(one_KMC: Tensor, other_KMC: Tensor) -> Tensor:
    return (one_KMC * other_KMC).sum(1).double().sum(0)


def _ratio(above_C: Tensor, below_C: Tensor) -> Tensor:
    """Their quotient, 0 where a column has nothing left to gain."""
    return torch.where(below_C > 0, above_C / below_C.clamp_min(1e-300), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The change of a layer's down projections, and how it was chosen."""

    change_KMD: Tensor | None  # of the transposed matrices; None if nothing is gained
    damping: float | None  # the chosen share; None if nothing is gained
    # Damping -> squared error on the held-out rows, as a share of that without a change.
    held_out: dict[float, float]


def fit_layer(
    fitted: Rows, held: Rows, total: Callable[[Tensor], Tensor] = lambda sums: sums
) -> Fit:
    """Choose the damping on held-out rows, then fit on all of them.

    A change that does not lower the error on the held-out rows is none.
    """
    width = fitted.residual_TD.shape[1]
    count = min(width, _MOST_COLUMNS)
    sample_C = torch.arange(count, device=fitted.residual_TD.device) * width // count
    system = System((fitted,), total)
    lacking_TC = held.residual_TD[:, sample_C]
    unchanged = float(system.total(_dot(lacking_TC[None], lacking_TC[None])).sum())
    if not system.scale or not unchanged:  # no expert was chosen, or nothing is lost
        return Fit(None, None, {})
    inverses = [system.inverse(damping) for damping in DAMPINGS]
    change_KMC = system.solve(sample_C, DAMPINGS, inverses)
    left_TC = lacking_TC.repeat(1, len(DAMPINGS)) - held.output(change_KMC)
    squares_C = system.total(_dot(left_TC[None], left_TC[None]))
    sums = squares_C.reshape(len(DAMPINGS), -1).sum(1) / unchanged
    errors = dict(zip(DAMPINGS, sums.tolist(), strict=True))
    best = min(DAMPINGS, key=lambda damping: errors[damping])
    if errors[best] >= 1:
        return Fit(None, None, errors)
    both = System((fitted, held), total)
    inverse_KMM = both.inverse(best)
    most = max(1, MOST_ELEMENTS // (inverse_KMM.shape[0] * inverse_KMM.shape[1]))
    blocks = torch.split(torch.arange(width, device=sample_C.device), most)
    changes = [both.solve(block, [best], [inverse_KMM]) for block in blocks]
    return Fit(torch.cat(changes, 2), best, errors)
