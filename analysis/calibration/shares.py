"""The layers of a model, divided among the processes of a run: each reads and holds its share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.distributed import Sums
from analysis.calibration.feed import backward_options, run_trunk
from analysis.calibration.line import Line
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.memory import MemoryNeeds, memory_needs
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, OUTPUT, Skeleton
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.errors import CheckpointError, StatsError
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.numbers.words import counted

HIDDEN: Final = "hidden"  # in a message from one share to the next
_GIB: Final = 1 << 30
_SHARE_OF_FREE: Final = 0.8  # estimates of memory are too low by as much, as for blocks of experts


def divide(
    costs: Sequence[float],
    sizes: Sequence[int],
    room: Sequence[int],
    instead: str = "use one process with --stream-layers",
) -> list[int]:
    """Divide layers among processes so that the largest cost of a process is smallest.

    Each gets one or more that follow each other. `costs` and `sizes` (bytes) are by layer, `room`
    (bytes) by process. Returns 0, and the number of the layer after each process's last. `instead`
    is what a refusal advises besides more processes.

    Raises:
        CheckpointError: there are fewer layers than processes, or the layers do not fit.
    """
    if len(costs) < len(room):
        raise CheckpointError(
            f"{len(room)} processes cannot share {counted(len(costs), 'layer')}; "
            f"start at most {len(costs)}."
        )
    cost_to, size_to = ([0.0, *accumulate(amounts)] for amounts in (costs, sizes))
    # Of the first layers, divided among the first processes: the largest cost, and where each ends.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for space in room:
        best = {
            end: min(
                (max(largest, cost_to[end] - cost_to[start]), (*ends, end))
                for start, (largest, ends) in best.items()
                if start < end and size_to[end] - size_to[start] <= space
            )
            for end in range(1, len(costs) + 1)
            if any(start < end and size_to[end] - size_to[start] <= space for start in best)
        }
    if len(costs) not in best:
        total, most = size_to[-1] / _GIB, sum(room) / _GIB
        raise CheckpointError(
            f"The layers take {total:.1f} GiB, and the {len(room)} processes have room for "
            f"{most:.1f} GiB at most; start more of them, on other machines, or {instead}."
        )
    return list(best[len(costs)][1])


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Some consecutive layers of a model, loaded, in a line of processes that hold the others."""

    skeleton: Skeleton
    relay: Relay
    line: Line
    layers: range
    shape: tuple[int, ...]  # of one token's hidden states

    @property
    def model(self) -> PreTrainedModel:
        """The model, with weights in this share only."""
        return self.skeleton.model

    def entering(self, batch: TokenBatch, message: Sums) -> Tensor:
        """The hidden states that these layers get: from the process before, or the embeddings."""
        if self.line.is_first:
            with torch.no_grad():
                return self.relay.embed(batch)
        return message[HIDDEN].to(self.skeleton.device)

    @contextmanager
    def after_layers(self, hidden_BTD: Tensor | None = None) -> Iterator[None]:
        """Inside, no layer runs, and the last one returns this; by default those of one token."""
        if hidden_BTD is None:
            dtype, device = self.model.dtype, self.skeleton.device
            hidden_BTD = torch.zeros((1, 1, *self.shape), dtype=dtype, device=device)
        with self.relay.after_layers(hidden_BTD):
            yield

    def run(self, batch: TokenBatch, hidden_BTD: Tensor) -> Tensor:
        """What these layers make of it."""
        return self.relay.span(self.layers, batch, hidden_BTD)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What a run does with the layers that it needs."""

    costs: Sequence[float]  # of running each of them; the last with what follows it
    first: TokenBatch  # a batch, which tells whether layers of the model run alone
    ends: Sequence[int] = ()  # what is needed behind the layers, such as HEAD
    feed: Callable[[PreTrainedModel, TokenBatch], object] = run_trunk  # see `Relay`


def load_share(
    model: MoEModel,
    sequences: TokenSequences,
    settings: CalibrationSettings,
    line: Line,
    work: LayerWork,
) -> Share:
    """Divide the layers and load those of this process, in all of them together.

    The longest of `sequences` sets the memory that a run takes besides the weights.
    """
    processes = line.processes
    with processes.together():
        skeleton, relay = _empty(model, settings, work)
        facts = {}
        if line.is_first:
            skeleton.load(EMBEDDINGS)
            with torch.no_grad():
                # Refuses some models, before their layers are read.
                hidden_BTD = replace(relay, feed=run_trunk).embed(work.first)
            facts["shape"] = torch.tensor(hidden_BTD.shape[2:])
        needs = memory_needs(model, sequences, settings)
        facts["room"] = torch.tensor([_room(model, needs)])
    in_line = processes.gather(facts)[::-1]
    with processes.together():
        divided = None
        if processes.is_first:
            rooms = [int(part["room"].item()) for part in in_line]
            # Weights in memory may be larger than on disk.
            every = sum(map(skeleton.stored_bytes, skeleton.parts))
            stored = stored_sizes(model, skeleton, settings, work)
            sizes = [nbytes * needs.weights // every for nbytes in stored]
            # A run with backward cannot be streamed.
            instead = [backward_options(needs.batch_size)] if needs.graph else []
            # Reading is no cost of a process: processes of one machine share its disk.
            divided = divide(work.costs, sizes, rooms, *instead), in_line[0]["shape"].tolist()
    ends, shape = processes.share(divided)
    with processes.together():
        own = range(*ends[line.place : line.place + 2])
        share = Share(skeleton, relay, line, own, tuple(shape))
        for part in (*share.layers, *(work.ends if line.is_last else ())):
            skeleton.load(part)
    return share


def _empty(
    model: MoEModel, settings: CalibrationSettings, work: LayerWork
) -> tuple[Skeleton, Relay]:
    if settings.placement.device_map:
        raise StatsError(
            "Each of several processes holds its layers on one device; leave out --device-map."
        )
    skeleton = Skeleton(model, settings)
    relay = Relay(
        skeleton.model,
        skeleton.layers,
        model.family.label,
        work.feed,
        refused="cannot be divided among processes",
        instead="Run one process",
        inseparable=model.inseparable,
    )
    return skeleton, relay


def _room(model: MoEModel, needs: MemoryNeeds) -> int:
    """Bytes that this process has for weights."""
    free = int(_SHARE_OF_FREE * needs.free)
    room = free - (needs.whole_model - needs.weights)
    if room <= 0 and needs.graph:
        raise CheckpointError(
            f"A process of {model.name} needs about {needs.graph / _GIB:.1f} GiB for the "
            f"activations that backward needs, but has {free / _GIB:.1f} GiB for all. Try "
            f"{backward_options(needs.batch_size)}."
        )
    return max(0, room)


def stored_sizes(
    model: MoEModel, skeleton: Skeleton, settings: CalibrationSettings, work: LayerWork
) -> list[int]:
    """Bytes on disk of each layer, of the first and the last one with what is needed besides."""
    heads = {name for head in prediction_heads(model) for name in head.tensors}
    sizes = [skeleton.stored_bytes(layer) for layer in range(len(work.costs))]
    sizes[0] += skeleton.stored_bytes(EMBEDDINGS)
    ends = set(work.ends)
    if OUTPUT in ends and not skeleton.stored_bytes(OUTPUT):  # tied
        ends.add(EMBEDDINGS)
    sizes[-1] += sum(skeleton.stored_bytes(part, without=heads) for part in ends)
    if "heads" in settings.groups:
        sizes[-1] += sum(model.checkpoint.tensors[name].nbytes for name in heads)
    return sizes
