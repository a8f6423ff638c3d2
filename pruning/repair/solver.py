"""Least squares for the down projections of one layer, all kept experts together.

The block's routed output is the sum over experts of gate weight times down times activations: it
is linear in all down projections at once. Changes of them are fitted to what the output lacks, with
a penalty on their size. The system has experts x neurons unknowns for each output column and is
never formed: conjugate gradients need its products only, two passes over the tokens, and each
expert's own Gram matrix preconditions it.

Columns of the output are solved in blocks of one width, whatever memory there is: what an expert
has, rows and matrices, may lie in files, and is then read once a pass for several blocks.

Shape suffixes: K kept experts, M neurons of an expert, D model width, C columns of a block (of each
damping), T tokens, R rows of one expert (the tokens routed to it).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from analysis.drain import drain, with_steps
from pruning.repair.effort import (
    DAMPINGS,
    INVERSES,
    ITERATIONS,
    PRODUCTS,
    SAMPLE_COLUMNS,
    SOLUTION,
    TRIAL,
    TRIAL_INVERSES,
)
from pruning.repair.expert_store import ExpertStore, OfExperts, named

COLUMNS = 128  # of the output, in a block
_CHANGE = "change"

Total = Callable[[Tensor], Tensor]  # adds up what several processes have


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What the kept experts do on some tokens, and what their sum lacks."""

    residual_TD: Tensor  # what the routed output should be larger by
    scaled: Sequence[Tensor]  # (R, M) of each expert: activations times gate weight
    tokens: tuple[Tensor, ...]  # (R,) of each expert: the token of each row

    @property
    def size(self) -> Tensor:
        """How many tokens there are."""
        return torch.tensor(len(self.residual_TD))

    def of_experts(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Number, rows and tokens of each expert."""
        for expert, token_R in enumerate(self.tokens):
            yield expert, self.scaled[expert], token_R

    def output(self, changes: Sequence[Tensor]) -> Tensor:
        """(T, C): what changes of the transposed down projections, (M, C) each, add."""
        added_TC = self.residual_TD.new_zeros(len(self.residual_TD), changes[0].shape[1])
        for expert, scaled_RM, token_R in self.of_experts():
            added_TC.index_add_(0, token_R, scaled_RM @ changes[expert])
        return added_TC


@dataclass(frozen=True, slots=True, eq=False)
class SplitRows:
    """Rows to fit on; those of the last tokens judge first."""

    every: Rows
    num_fitted: int  # tokens

    @property
    def fitted(self) -> Rows:
        """Those of the first tokens."""
        rows = self.every
        tokens = tuple(token_R[token_R < self.num_fitted] for token_R in rows.tokens)
        scaled = _Cut(rows.scaled, tuple(slice(len(token_R)) for token_R in tokens))
        return Rows(rows.residual_TD[: self.num_fitted], scaled, tokens)

    @property
    def held(self) -> Rows:
        """Those of the others."""
        rows, first = self.every, self.num_fitted
        tokens = tuple(token_R[token_R >= first] - first for token_R in rows.tokens)
        pairs = zip(rows.tokens, tokens, strict=True)
        cuts = tuple(slice(len(all_R) - len(held_R), None) for all_R, held_R in pairs)
        return Rows(rows.residual_TD[first:], _Cut(rows.scaled, cuts), tokens)


def joined(fitted: Rows, held: Rows) -> SplitRows:
    """Rows to fit on and rows that judge, together."""
    count = len(fitted.residual_TD)
    scaled = map(torch.cat, zip(fitted.scaled, held.scaled, strict=True))
    pairs = zip(fitted.tokens, held.tokens, strict=True)
    tokens = tuple(torch.cat([fitted_R, held_R + count]) for fitted_R, held_R in pairs)
    residual_TD = torch.cat([fitted.residual_TD, held.residual_TD])
    return SplitRows(Rows(residual_TD, tuple(scaled), tokens), count)


@dataclass(frozen=True, slots=True)
class _Cut(Sequence[Tensor]):
    """Some rows of each expert."""

    tensors: Sequence[Tensor]
    cuts: tuple[slice, ...]

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, expert: int) -> Tensor:  # type: ignore[override]
        return self.tensors[expert][self.cuts[expert]]


def gram_matrices(
    rows: Rows, kept: ExpertStore, name: str, others: Sequence[Tensor] | None = None
) -> Generator[float, None, OfExperts]:
    """(M, M) of each expert: the Gram matrix of its scaled activations, added to `others`.

    Yields the share that is done.
    """
    for expert, scaled_RM, _ in rows.of_experts():
        gram_MM = scaled_RM.T @ scaled_RM
        if others is not None:
            gram_MM += others[expert]
        kept.add(named(name, expert), gram_MM)
        yield (expert + 1) / len(rows.tokens)
    return OfExperts(kept, name, len(rows.tokens), rows.residual_TD.device)


@dataclass(frozen=True, eq=False)
class System:
    """The normal equations of some rows."""

    rows: Rows
    grams: OfExperts  # of this process, as all of `rows`
    total: Total = lambda sums: sums

    @property
    def _experts(self) -> range:
        return range(len(self.rows.tokens))

    @cached_property
    def scale(self) -> float:
        """Mean of the diagonal of all Gram matrices, of which dampings are shares."""
        sums = torch.stack([gram_MM.diagonal().double().sum() for gram_MM in self.grams])
        return float(self.total(sums).mean()) / len(self.grams[0])

    def inverses(self, dampings: Sequence[float]) -> Generator[float, None, list[OfExperts]]:
        """For each damping, (M, M) of each expert: the inverse of its damped Gram matrix."""
        names = [f"{self.grams.name}-inverse-{damping:g}" for damping in dampings]
        for expert in self._experts:
            gram_MM = self.grams[expert]
            whole_MM = self.total(gram_MM.double())
            for name, damping in zip(names, dampings, strict=True):
                damped_MM = whole_MM.clone()
                damped_MM.diagonal().add_(damping * self.scale)
                factor_MM = torch.linalg.cholesky(damped_MM)
                inverse_MM = torch.cholesky_inverse(factor_MM.to(gram_MM))
                self.grams.kept.add(named(name, expert), inverse_MM)
            yield (expert + 1) / len(self._experts)
        return [replace(self.grams, name=name) for name in names]

    def solve(
        self,
        blocks: Sequence[Tensor],
        dampings: Sequence[float],
        inverses: Sequence[Sequence[Tensor]],
        iterations: int = ITERATIONS,
    ) -> list[Tensor]:
        """For each block of columns their change by each damping, (K, M, dampings x C).

        An inverse preconditions: any, near or far, gives the same solution with enough iterations.
        Each column has its own step sizes. What an expert has is read once a pass for all blocks.
        """
        residual_TD = self.rows.residual_TD
        lacking = [residual_TD[:, columns].repeat(1, len(dampings)) for columns in blocks]
        sizes = [
            self.scale * torch.tensor(dampings).double().repeat_interleave(len(columns))
            for columns in blocks
        ]
        solved = [
            _ColumnBlock(self._gathered([values_TC])[0], size_C.to(residual_TD.device))
            for values_TC, size_C in zip(lacking, sizes, strict=True)
        ]
        del lacking
        for iteration in range(iterations):
            for expert in self._experts:
                matrices = [inverse[expert] for inverse in inverses]
                for block in solved:
                    block.precondition(expert, matrices)
            for block in solved:
                block.turn()
            outputs = self._outputs(solved)
            for block, output_TC in zip(solved, outputs, strict=True):
                block.step(self.total(_dot(output_TC, output_TC)))
            if iteration + 1 < iterations:  # the last step needs no second pass over the tokens
                for block, image_KMC in zip(solved, self._gathered(outputs), strict=True):
                    block.subtract(image_KMC)
        return [block.change_KMC for block in solved]

    def _gathered(self, values: Sequence[Tensor]) -> list[Tensor]:
        """(K, M, C) for each (T, C): the sum over tokens of activations times these values."""
        neurons = self.rows.scaled[0].shape[1]
        sums = [part.new_empty(len(self._experts), neurons, part.shape[1]) for part in values]
        for expert, scaled_RM, token_R in self.rows.of_experts():
            for values_TC, sums_KMC in zip(values, sums, strict=True):
                chosen_RC = values_TC.index_select(0, token_R)
                torch.mm(scaled_RM.T, chosen_RC, out=sums_KMC[expert])
        return [self.total(sums_KMC) for sums_KMC in sums]

    def _outputs(self, solved: "Sequence[_ColumnBlock]") -> list[Tensor]:
        """(T, C) for each block: what its direction adds to the output."""
        residual_TD = self.rows.residual_TD
        outputs = [
            residual_TD.new_zeros(len(residual_TD), block.direction_KMC.shape[2])
            for block in solved
        ]
        for expert, scaled_RM, token_R in self.rows.of_experts():
            for block, output_TC in zip(solved, outputs, strict=True):
                output_TC.index_add_(0, token_R, scaled_RM @ block.direction_KMC[expert])
        return outputs


class _ColumnBlock:
    """Conjugate gradients of a block of columns, for each damping."""

    def __init__(self, left_KMC: Tensor, size_C: Tensor) -> None:
        """`left_KMC`: the right side, of which nothing is solved."""
        self.left_KMC, self.size_C = left_KMC, size_C
        self.change_KMC, self.direction_KMC = torch.zeros_like(left_KMC), torch.zeros_like(left_KMC)
        self.better_KMC = torch.empty_like(left_KMC)
        self.before_C, self.slope_C = torch.zeros_like(size_C), torch.zeros_like(size_C)
        self.step_C = size_C.to(left_KMC)

    def precondition(self, expert: int, inverses: Sequence[Tensor]) -> None:
        """Turn what is left of an expert into a better direction."""
        left_MC, better_MC = self.left_KMC[expert], self.better_KMC[expert]
        width = left_MC.shape[1] // len(inverses)
        for number, inverse_MM in enumerate(inverses):
            columns = slice(number * width, (number + 1) * width)
            torch.mm(inverse_MM, left_MC[:, columns], out=better_MC[:, columns])
        self.slope_C += _dot(left_MC, better_MC)

    def turn(self) -> None:
        """Take the direction that is conjugate to those before."""
        ratio_C = _ratio(self.slope_C, self.before_C).to(self.left_KMC)
        self.direction_KMC.mul_(ratio_C).add_(self.better_KMC)

    def step(self, squares_C: Tensor) -> None:
        """Go along the direction, which adds an output with these squares."""
        norms_C = torch.zeros_like(self.size_C)
        for direction_MC in self.direction_KMC:
            norms_C += _dot(direction_MC, direction_MC)
        self.step_C = _ratio(self.slope_C, squares_C + self.size_C * norms_C).to(self.left_KMC)
        self.change_KMC.addcmul_(self.step_C, self.direction_KMC)
        self.before_C, self.slope_C = self.slope_C, torch.zeros_like(self.slope_C)

    def subtract(self, image_KMC: Tensor) -> None:
        """What the step explains is left no longer; the image is changed."""
        image_KMC.addcmul_(self.size_C.to(image_KMC), self.direction_KMC)
        self.left_KMC.addcmul_(self.step_C, image_KMC, value=-1)


def _dot(one_XC: Tensor, other_XC: Tensor) -> Tensor:
    return (one_XC * other_XC).sum(0).double()


def _ratio(above_C: Tensor, below_C: Tensor) -> Tensor:
    """Their quotient, 0 where a column has nothing left to gain."""
    return torch.where(below_C > 0, above_C / below_C.clamp_min(1e-300), 0.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the fit of a layer is."""

    name: str  # see `effort`
    share: float  # of the stage, 0..1; those before it are done


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The change of a layer's down projections, and how it was chosen."""

    changes: Sequence[Tensor] | None  # (D, M) of each expert; None if nothing is gained
    damping: float | None  # the chosen share; None if nothing is gained
    # Damping -> squared error on the held-out rows, as a share of that without a change.
    held_out: dict[float, float]


def fit_layer(
    rows: SplitRows,
    kept: ExpertStore,
    total: Total = lambda sums: sums,
    at_once: int = 1,
) -> Generator[Stage, None, Fit]:
    """Choose the damping on held-out rows, then fit on all of them.

    A change that does not lower the error on the held-out rows is none. `at_once`: blocks of
    columns that are solved together. Yields how far it is.
    """
    every, held = rows.every, rows.held
    width, device = every.residual_TD.shape[1], every.residual_TD.device
    count = min(width, SAMPLE_COLUMNS)
    sample_C = torch.arange(count, device=device) * width // count
    products = gram_matrices(rows.fitted, kept, "gram")
    grams = yield from with_steps(products, partial(Stage, PRODUCTS))
    system = System(rows.fitted, grams, total)
    lacking_TC = held.residual_TD[:, sample_C]
    unchanged = float(total(_dot(lacking_TC, lacking_TC)).sum())
    if not system.scale or not unchanged:  # no expert was chosen, or nothing is lost
        return Fit(None, None, {})
    inverses = yield from with_steps(system.inverses(DAMPINGS), partial(Stage, TRIAL_INVERSES))
    (change_KMC,) = system.solve([sample_C], DAMPINGS, inverses)
    left_TC = lacking_TC.repeat(1, len(DAMPINGS)) - held.output(change_KMC.unbind())
    squares_C = total(_dot(left_TC, left_TC))
    sums = squares_C.reshape(len(DAMPINGS), -1).sum(1) / unchanged
    errors = dict(zip(DAMPINGS, sums.tolist(), strict=True))
    best = min(DAMPINGS, key=lambda damping: errors[damping])
    for inverse in inverses:
        inverse.drop()
    yield Stage(TRIAL, 1.0)
    if errors[best] >= 1:
        return Fit(None, None, errors)
    both = System(every, drain(gram_matrices(held, kept, "gram of all", system.grams)), total)
    system.grams.drop()
    blocks = torch.split(torch.arange(width, device=device), COLUMNS)
    inverses = yield from with_steps(both.inverses([best]), partial(Stage, INVERSES))
    for first in range(0, width, at_once * COLUMNS):
        some = blocks[first // COLUMNS :][:at_once]
        for change_KMC in both.solve(some, [best], inverses):
            for expert, change_MC in enumerate(change_KMC):
                kept.add(named(_CHANGE, expert), change_MC.T.contiguous())
        yield Stage(SOLUTION, min(1.0, (first + at_once * COLUMNS) / width))
    inverses[0].drop()
    both.grams.drop()
    return Fit(OfExperts(kept, _CHANGE, len(every.tokens), device), best, errors)
