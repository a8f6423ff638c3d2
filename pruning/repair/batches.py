"""The batches of a repair: which tokens are fitted on, and which judge first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from analysis.calibration.distributed import Processes
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.errors import StatsError

HELD_OUT = 5  # one of so many sequences judges, and is fitted on last


@dataclass(frozen=True, eq=False)
class PlacedBatch:
    """A batch of one corpus."""

    tokens: TokenBatch
    held_B: Tensor  # bool: sequences that judge

    @property
    def first(self) -> TokenBatch:
        """Its first sequence alone, without padding."""
        length = int(self.tokens.mask[0].sum())
        one = slice(1), slice(length)
        positions = self.tokens.positions
        return replace(
            self.tokens,
            input_ids=self.tokens.input_ids[one],
            mask=self.tokens.mask[one],
            counted=self.tokens.counted[one],
            token_shard=self.tokens.token_shard[one],
            positions=None if positions is None else positions[one],
        )

    @cached_property
    def counted_T(self) -> Tensor:
        """bool, flat: tokens that count."""
        return torch.from_numpy(self.tokens.counted).reshape(-1)

    @property
    def held_T(self) -> Tensor:
        """bool, flat: tokens that judge."""
        return self.held_B[:, None].expand(self.tokens.counted.shape).reshape(-1)


def placed_batches(
    corpora: Sequence[TokenSequences], batch_size: int, processes: Processes
) -> list[PlacedBatch]:
    """This process's batches; the last fifth of each corpus's sequences judges."""
    batches = []
    for sequences in corpora:
        count = len(sequences.rows)
        first_held = count - max(1, count // HELD_OUT) if count > 1 else count
        for batch in sequences.batches(batch_size):
            number = torch.arange(batch.first, batch.first + len(batch.mask))
            batches.append(PlacedBatch(batch, number >= first_held))
    if not any(bool(batch.held_B.any()) for batch in batches):
        raise StatsError(
            "A repair fits on some sequences and judges on others; give more tokens, or a smaller "
            "--seq-len."
        )
    return batches[processes.rank :: processes.world]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the tokens that count stand among all: those that judge after those fitted on."""

    of_batches: tuple[Tensor, ...]  # (T,) of each batch, -1 for tokens that do not count
    num_fitted: int
    num_tokens: int

    @classmethod
    def of(cls, batches: Sequence[PlacedBatch], device: torch.device) -> "Places":
        """Those of the tokens of some batches, in their order."""
        places = [torch.full((len(batch.counted_T),), -1) for batch in batches]
        position = num_fitted = 0
        for judging in (False, True):
            for batch, place_T in zip(batches, places, strict=True):
                chosen_T = batch.counted_T & (batch.held_T == judging)
                count = int(chosen_T.sum())
                place_T[chosen_T] = torch.arange(position, position + count)
                position += count
            num_fitted = num_fitted if judging else position
        return cls(tuple(place_T.to(device) for place_T in places), num_fitted, position)
