"""Fitness of candidates on a loaded model: masked, and compared with the original model.

Up to the first layer in which two candidates differ, their hidden states are equal. Those of the
last candidate and of the parents are kept, so a candidate starts at the layer in which it first
differs from one of them. Its fitness is bit for bit the same.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.arrays import FloatArray
from analysis.calibration.distributed import Processes
from analysis.calibration.free import free_memory
from analysis.calibration.loading import CalibrationSettings, load_model
from analysis.calibration.memory import check_fits
from analysis.corpora import TokenSequences
from analysis.families import MoEFamily
from analysis.forwards import decoder_layers, other_forwards, tensors_in
from analysis.model import MoEModel
from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.evaluate.candidate import MeasureSettings, measure_hidden
from pruning.evaluate.full_side import FullSide, final_hidden, run_full
from pruning.evaluate.result import MEASURES
from pruning.evaluate.samples import SampleBatch, Samples
from pruning.masking import masked
from pruning.plan import PruningPlan
from pruning.search.run import BlockFitness, Fitness


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What a run through the trunk leaves."""

    hidden_ND: Tensor  # (scored positions, width) final hidden states
    # Decoder index -> (sequences, length, width) hidden states that the layer got, of each layer
    # that ran.
    inputs: dict[int, Tensor]
    layers: int  # decoder layers that ran
    # Whether each layer got exactly what the one before it gave, and nothing else of the layers
    # before. Only then can a run begin in between.
    is_chain: bool


def run_from(
    model: PreTrainedModel,
    layers: Sequence[nn.Module],
    batch: SampleBatch,
    first: int = 0,
    entry_BTD: Tensor | None = None,
) -> Pass:
    """Run the trunk over a batch, from the layer with decoder index `first` on.

    Bit for bit what the whole trunk gives, if `entry_BTD` is what this layer got in a run with the
    same batch in which all layers before it computed the same; without it, it gets what comes to
    it.
    """
    watch = _Watch(layers, first, entry_BTD)
    forwards = [watch.forward(index) for index in range(len(layers))]
    with other_forwards(layers, forwards):
        hidden_ND = final_hidden(model, batch)
    return Pass(hidden_ND, watch.inputs, len(layers) - first, watch.is_chain)


class _Watch:
    """Stands between the layers of one run, and sees what passes from each to the next."""

    def __init__(self, layers: Sequence[nn.Module], first: int, entry_BTD: Tensor | None) -> None:
        self._originals = [layer.forward for layer in layers]
        self._first = first
        self._entry_BTD = entry_BTD
        self._outputs: list[Any] = []
        self._versions: list[int] = []
        self._was_chained = True
        self.inputs: dict[int, Tensor] = {}

    def forward(self, index: int) -> Any:
        """What takes the place of a layer's forward."""
        if index < self._first:
            return lambda hidden_states, *_, **__: hidden_states

        def run(hidden_states: Tensor, *args: Any, **named: Any) -> Any:
            if index == self._first and self._entry_BTD is not None:
                hidden_states = self._entry_BTD
            self._look(index, hidden_states, (args, named))
            self._outputs.append(self._originals[index](hidden_states, *args, **named))
            return self._outputs[-1]

        return run

    def _look(self, index: int, hidden_BTD: Tensor, others: Any) -> None:
        if index > self._first and not (self._outputs and hidden_BTD is self._outputs[-1]):
            self._was_chained = False
        earlier = {id(output) for output in self._outputs}
        if any(id(value) in earlier for value in tensors_in(others)):
            self._was_chained = False
        self.inputs[index] = hidden_BTD
        self._versions.append(hidden_BTD._version)

    @property
    def is_chain(self) -> bool:
        """See `Pass`; also that no layer wrote into what it got, which is kept."""
        untouched = [tensor._version for tensor in self.inputs.values()] == self._versions
        complete = len(self.inputs) == len(self._originals) - self._first
        return self._was_chained and untouched and complete


_SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that is searched on."""

    loaded: PreTrainedModel  # not masked
    family: MoEFamily  # its architecture
    sparse: tuple[int, ...]  # decoder indices of its layers with experts
    full: FullSide  # its side of the search samples
    # Removed -> the plan that removes so many of each layer.
    plan_of: Callable[[Removed], PruningPlan]


def load_for(
    model: MoEModel,
    sequences: TokenSequences,
    running: CalibrationSettings,
    offload: Path | None = None,
) -> Generator[Progress, None, PreTrainedModel]:
    """Load a model that fits with these samples; `offload` takes weights that fit nowhere else."""
    yield Progress("loading the model", 0, 0)
    check_fits(model, sequences, running)
    return load_model(model, running, offload)


def subject_of(
    model: MoEModel,
    loaded: PreTrainedModel,
    samples: Samples,
    plan_of: Callable[[Removed], PruningPlan],
) -> Generator[Progress, None, Subject]:
    """Run the loaded model over the samples."""
    full = yield from run_full(loaded, samples)
    full = replace(full, max_bytes=free_share(loaded.device))
    sparse = tuple(layer.index for layer in model.layers)
    return Subject(loaded, model.family, sparse, full, plan_of)


class MaskedRuns:
    """Runs candidates batch after batch, each from where it first differs from one that is kept.

    Two candidates differ in `fewest_changes` layers at least. Of hidden states kept for reuse at
    most `max_bytes` stay, together with those of one candidate more; 0 reuses nothing. By default a
    quarter of the free memory of the model's device. One candidate has (sparse layers + 1 -
    fewest_changes) x tokens x width x bytes of an element.
    """

    def __init__(
        self,
        subject: Subject,
        settings: MeasureSettings,
        max_bytes: int | None = None,
        fewest_changes: int = 1,
    ) -> None:
        self._subject = subject
        self._settings = settings
        self.batches = tuple(subject.full.samples.batches())
        self.layers = decoder_layers(subject.loaded, subject.family)
        device = next(subject.loaded.parameters()).device
        self._kept = _HiddenStates(
            subject.sparse[: len(subject.sparse) + 1 - fewest_changes],
            free_share(device) if max_bytes is None else max_bytes,
        )
        self._plan: tuple[Removed, PruningPlan] | None = None

    def run(self, removed: Removed, number: int) -> tuple[dict[str, FloatArray], int]:
        """Means over the scored positions of each sample of a batch, and the layers that ran.

        Returns:
            Position function -> (samples of the batch,), see `measure_hidden`.
        """
        batch = self.batches[number]
        first, entry_BTD = self._kept.entry(removed, number)
        subject = self._subject
        if self._plan is None or self._plan[0] != removed:
            self._plan = (removed, subject.plan_of(removed))
        with masked(subject.loaded, subject.family, self._plan[1]):
            done = run_from(subject.loaded, self.layers, batch, first, entry_BTD)
        self._kept.keep(removed, number, done)
        sums = measure_hidden(subject.full, batch, done.hidden_ND, self._settings)
        return {name: each / batch.counts for name, each in sums.items()}, done.layers

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep the hidden states of these, the first ones first, as far as there is room."""
        self._kept.hold(candidates)

    def forget(self) -> None:
        """Keep nothing: what comes shares nothing with what was."""
        self._kept.forget()
        self._subject.full.known.clear()


class MaskedFitness:
    """See `Fitness`; a block is a batch of samples, and `max_bytes` as in `MaskedRuns`.

    A measure of which lower is better counts negated.
    """

    def __init__(
        self, subject: Subject, measure: str, seed: int, max_bytes: int | None = None
    ) -> None:
        self._measure = MEASURES[measure]
        # Candidates remove equally many: two that differ differ in two layers at least.
        self._runs = MaskedRuns(subject, MeasureSettings((measure,), seed), max_bytes, 2)
        self.num_blocks, self.num_layers = len(self._runs.batches), len(self._runs.layers)
        """Batches of the search samples, and decoder layers."""
        self.hold = self._runs.hold

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Nothing: each is measured by itself."""
        yield from ()
        return 0.0

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Mean of the measure over the scored positions of each sample of a batch."""
        means, layers = self._runs.run(removed, number)
        sign = 1 if self._measure.higher_is_better else -1
        return BlockFitness(sign * means[self._measure.sums], layers)


def free_share(device: torch.device) -> int:
    """Bytes that may be kept for reuse: a quarter of what is free."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    return int(_SHARE_OF_MEMORY * free)


class _HiddenStates:
    """Hidden states that sparse layers got, of some candidates, for each block.

    Candidates that begin alike share tensors. `sparse` are the layers in which two candidates may
    begin to differ.
    """

    def __init__(self, sparse: Sequence[int], max_bytes: int) -> None:
        self._sparse = tuple(sparse)
        self._max_bytes = max_bytes
        self._is_chain = max_bytes > 0
        # removed -> block -> what each sparse layer got.
        self._inputs: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}

    def entry(self, removed: Removed, block: int) -> tuple[int, Tensor | None]:
        """The first layer that must run, and what it gets."""
        source = self._source(removed, block)
        if source is None:
            return 0, None
        alike = self._alike(source, removed)
        return self._sparse[alike], self._inputs[source][block][alike]

    def _source(self, removed: Removed, block: int) -> Removed | None:
        """Of the candidates kept, one that begins like this one for longest."""
        known = (other for other, blocks in self._inputs.items() if block in blocks)
        return max(known, key=lambda other: self._alike(other, removed), default=None)

    def keep(self, removed: Removed, block: int, done: Pass) -> None:
        """Keep what a run got, and what it did not need to compute again."""
        self._is_chain = self._is_chain and done.is_chain
        if not self._is_chain:
            self._inputs.clear()
            return
        source = self._source(removed, block)
        before = self._inputs[source][block] if source else ()
        inputs = tuple(
            done.inputs[index] if index in done.inputs else before[position]
            for position, index in enumerate(self._sparse)
        )
        self._inputs.setdefault(removed, {})[block] = inputs

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Let go of all but the last candidate and these, in their order, within the room."""
        last = list(self._inputs)[-1:]
        kept: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}
        seen: dict[int, int] = {}
        for removed in dict.fromkeys([*last, *candidates]):
            blocks: Mapping[int, tuple[Tensor, ...]] = self._inputs.get(removed, {})
            more = {id(t): t.nbytes for inputs in blocks.values() for t in inputs}
            if blocks and sum((seen | more).values()) <= self._max_bytes:
                seen |= more
                kept[removed] = dict(blocks)
        # The last stays last.
        self._inputs = {name: kept[name] for name in reversed(kept)}

    def forget(self) -> None:
        """Let go of everything."""
        self._inputs.clear()

    def _alike(self, one: Removed, other: Removed) -> int:
        """Number of layers at the beginning that lose equally many; all but the last at most."""
        limit = len(self._sparse) - 1
        return next((n for n in range(limit) if one[n] != other[n]), max(0, limit))


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
        with self._processes.together():
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
