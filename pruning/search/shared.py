"""Fitness shared by several processes: each measures every candidate on some of the blocks.

So each process holds hidden states of its own blocks alone, and all candidates of one beginning
meet in it. Values do not depend on the number of processes: a block is computed by one of them.
"""

from collections.abc import Generator, Sequence

import torch

from analysis.calibration.distributed import Processes
from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.search.scores import BlockFitness, Fitness


class SharedFitness:
    """See `Fitness`; in every process the same calls give the same values.

    Each could measure every block with `own`.
    """

    def __init__(self, own: Fitness, processes: Processes) -> None:
        self._own = own
        self._processes = processes
        self._round: tuple[Removed, int, list[BlockFitness]] | None = None
        self.num_blocks, self.num_layers = own.num_blocks, own.num_layers

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """In each process by itself."""
        return (yield from self._own.prepare(candidates))

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """A block; the processes compute a round of as many blocks as they are."""
        place, offset = divmod(number, self._processes.world)
        if self._round is None or self._round[:2] != (removed, place):
            self._round = (removed, place, self._measured(removed, place))
        return self._round[2][offset]

    def _measured(self, removed: Removed, place: int) -> list[BlockFitness]:
        processes = self._processes
        number = place * processes.world + processes.rank
        values, layers = torch.zeros(0, dtype=torch.float64), 0
        with processes.together():
            if number < self.num_blocks:
                own = self._own.block(removed, number)
                values, layers = torch.from_numpy(own.values), own.layers
        parts = processes.gather({"values": values, "layers": torch.tensor(layers)})
        # As JSON carries them floats stay what they are.
        plain = [(part["values"].tolist(), int(part["layers"])) for part in parts]
        return [
            BlockFitness(torch.tensor(values, dtype=torch.float64).numpy(), layers)
            for values, layers in processes.share(plain)
        ]

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Of what each process measured itself."""
        self._own.hold(candidates)
