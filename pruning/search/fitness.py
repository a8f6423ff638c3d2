"""Fitness of candidates: masked, and compared with the original model.

On a loaded model, the hidden states of two candidates are equal up to the first layer in which they
differ. Those of the last candidate and of the parents are kept, so a candidate starts at the layer
in which it first differs from one of them. Models larger than memory run layer by layer, with all
candidates in one pass over the weights. Fitness is bit for bit the same in all cases.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes
from analysis.calibration.free import free_memory
from analysis.calibration.loading import CalibrationSettings, load_model, resolve_dtype
from analysis.calibration.memory import check_fits
from analysis.corpora.sequences import TokenSequences
from analysis.families.base import MoEFamily
from analysis.model.forwards import decoder_layers, other_forwards, tensors_in
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import FloatArray
from analysis.progress import LOADING, Parts, Progress
from pruning.engine.candidate import MeasureSettings, measure_hidden
from pruning.engine.full_side import FullSide, final_hidden, full_side, run_full
from pruning.engine.masking import masked
from pruning.engine.streamed import Ends, EvaluationPlans, partial_folder, run_plans
from pruning.measures.result import MEASURES, SampleSums
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan
from pruning.plan.units import Removed
from pruning.search.costs import RunCosts
from pruning.search.run import Fitness
from pruning.search.scores import BlockFitness

_COMPARING = "comparing with the original model"
_SHARE_OF_MEMORY = 0.25
# Of a batch: position function -> sums over the scored positions of each sample, see
# `measure_hidden`; and the decoder layers that ran for this candidate.
Measurement = tuple[Mapping[str, SampleSums], int]


@dataclass(frozen=True, slots=True, eq=False)
class TrunkRun:
    """The results of one run through the trunk."""

    hidden_ND: Tensor  # (scored positions, width) final hidden states
    # Decoder index of each layer that ran -> (sequences, length, width) its input hidden states.
    inputs: dict[int, Tensor]
    layers: int  # decoder layers that ran
    # Whether each layer got exactly the output of the one before, and nothing else of earlier
    # layers. Only then may a run start in between.
    is_chain: bool


def run_from(
    model: PreTrainedModel,
    layers: Sequence[nn.Module],
    batch: SampleBatch,
    first: int = 0,
    entry_BTD: Tensor | None = None,
) -> TrunkRun:
    """Run the trunk over a batch from the layer with decoder index `first`.

    Bit for bit the whole trunk, if `entry_BTD` was the input of this layer in a run on the same
    batch in which all earlier layers computed the same. The model's own forward runs: earlier
    layers pass hidden states through, so the model itself makes masks, positions and the like.
    """
    watch = _Watch(layers, first, entry_BTD)
    forwards = [watch.forward(index) for index in range(len(layers))]
    with other_forwards(layers, forwards):
        hidden_ND = final_hidden(model, batch)
    return TrunkRun(hidden_ND, watch.inputs, len(layers) - first, watch.is_chain)


class _Watch:
    """Replaces the forwards of the layers in one run, and checks what passes between them."""

    def __init__(self, layers: Sequence[nn.Module], first: int, entry_BTD: Tensor | None) -> None:
        self._originals = [layer.forward for layer in layers]
        self._first = first
        self._entry_BTD = entry_BTD
        self._outputs: list[Any] = []
        self._versions: list[int] = []
        self._was_chained = True
        self.inputs: dict[int, Tensor] = {}

    def forward(self, index: int) -> Any:
        """The replacement of a layer's forward."""
        if index < self._first:
            return lambda hidden_states, *_, **__: hidden_states

        def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            if index == self._first and self._entry_BTD is not None:
                hidden_states = self._entry_BTD
            self._check(index, hidden_states, (args, kwargs))
            self._outputs.append(self._originals[index](hidden_states, *args, **kwargs))
            return self._outputs[-1]

        return run

    def _check(self, index: int, hidden_BTD: Tensor, others: Any) -> None:
        if index > self._first and not (self._outputs and hidden_BTD is self._outputs[-1]):
            self._was_chained = False
        earlier = {id(output) for output in self._outputs}
        if any(id(value) in earlier for value in tensors_in(others)):
            self._was_chained = False
        self.inputs[index] = hidden_BTD
        self._versions.append(hidden_BTD._version)

    @property
    def is_chain(self) -> bool:
        """See `TrunkRun`; false also if a layer wrote into its input, which is kept."""
        untouched = [tensor._version for tensor in self.inputs.values()] == self._versions
        complete = len(self.inputs) == len(self._originals) - self._first
        return self._was_chained and untouched and complete


@dataclass(frozen=True, eq=False)
class Subject:
    """A loaded model with its samples."""

    loaded: PreTrainedModel  # not masked
    family: MoEFamily
    sparse: tuple[int, ...]  # decoder indices of the layers with experts
    full: FullSide  # the original model's side of the samples
    plan_of: Callable[[Removed], PruningPlan]  # removed per layer -> plan


def load_for(
    model: MoEModel,
    sequences: TokenSequences,
    running: CalibrationSettings,
    offload: Path | None = None,
) -> Generator[Progress, None, PreTrainedModel]:
    """Load a model if it fits with these samples; `offload` takes weights that fit nowhere else."""
    yield Progress(LOADING, 0, 0)
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
    """Runs candidates batch by batch, each from where it first differs from one that is kept.

    Two candidates differ in at least `fewest_changes` layers. Hidden states kept for reuse take at
    most `max_bytes` and one more candidate; 0 disables reuse, the default is a quarter of the free
    memory of the model's device. A candidate takes (sparse layers + 1 - fewest_changes) x tokens x
    width x bytes per element.
    """

    def __init__(
        self,
        subject: Subject,
        settings: MeasureSettings,
        max_bytes: int | None = None,
        fewest_changes: int = 1,
    ) -> None:
        self.subject = subject
        self._settings = settings
        self.batches = tuple(subject.full.samples.batches())
        self._layers = decoder_layers(subject.loaded, subject.family)
        self.num_batches, self.num_layers = len(self.batches), len(self._layers)
        device = next(subject.loaded.parameters()).device
        self._kept = _HiddenStates(
            subject.sparse[: len(subject.sparse) + 1 - fewest_changes],
            free_share(device) if max_bytes is None else max_bytes,
        )
        self._plan: tuple[Removed, PruningPlan] | None = None

    def prepare(self, _candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Nothing: each candidate is measured by itself."""
        yield from ()

    def run(self, removed: Removed, number: int) -> Measurement:
        """Measure a candidate on a batch."""
        batch, subject = self.batches[number], self.subject
        first, entry_BTD = self._kept.entry(removed, number)
        if self._plan is None or self._plan[0] != removed:
            self._plan = (removed, subject.plan_of(removed))
        with masked(subject.loaded, subject.family, self._plan[1]):
            done = run_from(subject.loaded, self._layers, batch, first, entry_BTD)
        self._kept.keep(removed, number, done)
        sums = measure_hidden(subject.full, batch, done.hidden_ND, self._settings)
        return _with_counts(sums, batch), done.layers

    def run_base(self, base: Removed, number: int) -> int:
        """Run and hold what several candidates start from; the layers that ran."""
        layers = self.run(base, number)[1]
        self.hold([base])
        return layers

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep the hidden states of these, the first ones first, within the room."""
        self._kept.hold(candidates)

    def forget(self) -> None:
        """Keep nothing: later runs share nothing with earlier ones."""
        self._kept.forget()
        self.subject.full.cache.clear()


@dataclass(eq=False)
class StreamedRuns:
    """Runs candidates layer by layer, all in one pass, for models larger than memory."""

    model: MoEModel
    samples: Samples
    running: CalibrationSettings  # dtype, device, where hidden states lie
    plan_of: Callable[[Removed], PruningPlan]  # removed per layer -> plan
    settings: MeasureSettings
    folder: Path  # an interrupted pass resumes from what it left here
    _measurements: dict[Removed, dict[int, Measurement]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.num_batches = -(-len(self.samples) // self.samples.batch_size)  # of all processes
        self.num_layers = self.model.depth

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Measure these candidates on all batches of this process."""
        plans = {removed: self.plan_of(removed) for removed in candidates}
        all_plans = tuple(plans.values())
        dtype = resolve_dtype(self.running.dtype, self.model)
        facts = (self.model.identity, dtype, self.samples.batch_size, self.samples.sequences.digest)
        parts = self._parts(len(plans))
        with partial_folder(self.folder, facts, self.samples.processes) as at:
            running = run_plans(
                self.model, EvaluationPlans(all_plans, all_plans), [self.samples], self.running, at
            )
            ends = yield from parts.run("layers", running)
            self._measurements = yield from parts.by_phase(self._measure(ends, plans))
            ends.clear()

    def _parts(self, candidates: int) -> Parts:
        """The pass through the layers, then the heads of all candidates."""
        tokens, scored = self.samples.sequences.num_tokens, int(self.samples.num_scored.sum())
        costs = RunCosts.of(self.model, tokens, scored, by_layers=True)
        passes = dict(costs.one_pass([-1] * candidates))
        heads = passes.pop("compare")
        return Parts({"layers": passes, _COMPARING: {"compare": heads}})

    def _measure(
        self, ends: Ends, plans: Mapping[Removed, PruningPlan]
    ) -> Generator[Progress, None, dict[Removed, dict[int, Measurement]]]:
        original = partial(ends.hidden, self.samples, None)
        folder = self.running.placement.hidden_states_dir
        full = yield from full_side(ends.head, self.samples, original, folder)
        by_candidate: dict[Removed, dict[int, Measurement]] = {}
        with closing(full):
            for removed, plan in plans.items():
                yield Progress(_COMPARING, len(by_candidate), len(plans), "plans")
                layers, by_candidate[removed] = ends.layers(plan), {}
                for batch in self.samples.batches():
                    hidden_ND = ends.hidden(self.samples, plan, batch)
                    sums = measure_hidden(full, batch, hidden_ND, self.settings)
                    by_candidate[removed][batch.number] = _with_counts(sums, batch), layers
        return by_candidate

    def run(self, removed: Removed, number: int) -> Measurement:
        """The measurement of a candidate by `prepare`, on a batch of this process."""
        return self._measurements[removed][number]

    def run_base(self, _base: Removed, _number: int) -> int:
        """Nothing: all candidates shared one pass."""
        return 0

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Nothing: no hidden states are kept."""

    def forget(self) -> None:
        """Nothing: no hidden states are kept."""


def _with_counts(sums: Mapping[str, FloatArray], batch: SampleBatch) -> dict[str, SampleSums]:
    counts = batch.counts
    return {name: SampleSums(sum_, counts) for name, sum_ in sums.items()}


class RunFitness:
    """See `Fitness`: a block is a batch."""

    def __init__(self, runs: MaskedRuns | StreamedRuns, measure: str) -> None:
        self.runs, self._measure = runs, MEASURES[measure]
        self.num_blocks, self.num_layers = runs.num_batches, runs.num_layers
        self.hold = runs.hold

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Measure what the candidates share; the seconds that this took for each."""
        started = time.monotonic()
        yield from self.runs.prepare(candidates)
        return (time.monotonic() - started) / len(candidates)

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Sums of the measure over the scored positions of each sample of a batch."""
        sums, layers = self.runs.run(removed, number)
        own = sums[self._measure.sums]
        return BlockFitness(own.sums, own.counts, layers)


def masked_fitness(
    subject: Subject, measure: str, seed: int, max_bytes: int | None = None
) -> RunFitness:
    """Fitness on a loaded model; for `max_bytes` see `MaskedRuns`."""
    # All candidates remove equally many, so two that differ do so in at least two layers.
    return RunFitness(MaskedRuns(subject, MeasureSettings((measure,), seed), max_bytes, 2), measure)


def free_share(device: torch.device) -> int:
    """Bytes that may be kept for reuse: a quarter of the free memory."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    return int(_SHARE_OF_MEMORY * free)


class _HiddenStates:
    """Input hidden states of sparse layers, by candidate and block.

    Candidates that begin alike share tensors. `sparse` are the layers in which two candidates may
    begin to differ.
    """

    def __init__(self, sparse: Sequence[int], max_bytes: int) -> None:
        self._sparse = tuple(sparse)
        self._max_bytes = max_bytes
        self._is_chain = max_bytes > 0
        # removed -> block -> input of each sparse layer.
        self._inputs: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}

    def entry(self, removed: Removed, block: int) -> tuple[int, Tensor | None]:
        """The first layer that must run, and its input."""
        source = self._source(removed, block)
        if source is None:
            return 0, None
        alike = self._alike(source, removed)
        return self._sparse[alike], self._inputs[source][block][alike]

    def _source(self, removed: Removed, block: int) -> Removed | None:
        """The kept candidate that equals this one in most layers from the first on."""
        others = (other for other, blocks in self._inputs.items() if block in blocks)
        return max(others, key=lambda other: self._alike(other, removed), default=None)

    def keep(self, removed: Removed, block: int, done: TrunkRun) -> None:
        """Keep the inputs of a run, and those that it did not need to recompute."""
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
        """Drop all but the last candidate and these, in their order, within the room."""
        last = list(self._inputs)[-1:]
        kept: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}
        sizes: dict[int, int] = {}
        for removed in dict.fromkeys([*last, *candidates]):
            blocks: Mapping[int, tuple[Tensor, ...]] = self._inputs.get(removed, {})
            more = {id(t): t.nbytes for inputs in blocks.values() for t in inputs}
            if blocks and sum((sizes | more).values()) <= self._max_bytes:
                sizes |= more
                kept[removed] = dict(blocks)
        # The last stays last.
        self._inputs = {name: kept[name] for name in reversed(kept)}

    def forget(self) -> None:
        """Drop all."""
        self._inputs.clear()

    def _alike(self, one: Removed, other: Removed) -> int:
        """Number of equal layers from the first on; at most all but the last."""
        limit = len(self._sparse) - 1
        return next((n for n in range(limit) if one[n] != other[n]), max(0, limit))


class SharedFitness:
    """Fitness shared by processes: each measures every candidate on some of the blocks.

    So each process holds hidden states of its own blocks alone, and meets all candidates on them.
    In every process the same calls give the same values, whatever the number of processes. Each
    could measure every block.
    """

    def __init__(self, fitness: Fitness, processes: Processes) -> None:
        self._fitness = fitness
        self._processes = processes
        self._round: tuple[Removed, int, list[BlockFitness]] | None = None
        self.num_blocks, self.num_layers = fitness.num_blocks, fitness.num_layers
        self.hold = fitness.hold

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """In each process by itself."""
        with self._processes.together():
            return (yield from self._fitness.prepare(candidates))

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """A block; the processes compute as many blocks at a time as they are."""
        place, offset = divmod(number, self._processes.world)
        if self._round is None or self._round[:2] != (removed, place):
            self._round = (removed, place, self._measure(removed, place))
        return self._round[2][offset]

    def _measure(self, removed: Removed, place: int) -> list[BlockFitness]:
        processes = self._processes
        number = place * processes.world + processes.rank
        block = BlockFitness(np.zeros(0), np.zeros(0, np.int64), 0)
        with processes.together():
            if number < self.num_blocks:
                block = self._fitness.block(removed, number)
        parts = processes.gather(
            {
                "sums": torch.from_numpy(block.sums),
                "counts": torch.from_numpy(block.counts),
                "layers": torch.tensor(block.layers),
            }
        )
        # JSON preserves floats exactly.
        plain = [{name: values.tolist() for name, values in part.items()} for part in parts]
        return [
            BlockFitness(
                np.array(part["sums"], dtype=np.float64),
                np.array(part["counts"], dtype=np.int64),
                part["layers"],
            )
            for part in processes.share(plain)
        ]
