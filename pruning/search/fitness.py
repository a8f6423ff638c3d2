"""Fitness of candidates: masked, and compared with the original model.

On a loaded model, the hidden states of two candidates are equal up to the first layer in which they
differ. Those of the last candidate and of the parents are kept, so a candidate starts at the layer
in which it first differs from one of them. Models larger than memory run layer by layer, with all
candidates in one pass over the weights. Fitness is bit for bit the same in all cases.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.calibration.loading import CalibrationSettings, load_model, resolve_dtype
from analysis.calibration.memory import check_fits
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.families.base import MoEFamily
from analysis.model.forwards import decoder_layers, other_forwards, tensors_in
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import FloatArray
from analysis.progress import LOADING, Parts, Progress
from pruning.engine.candidate import MeasureSettings, measure_hidden
from pruning.engine.full_side import FullSide, final_hidden, full_side, run_full
from pruning.engine.masking import masked
from pruning.engine.streamed import Ends, EvaluationPlans, partial_folder, run_plans
from pruning.measures.result import MEASURES
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan
from pruning.plan.units import Removed
from pruning.search.costs import RunCosts
from pruning.search.kept_states import KeptStates, TrunkRun, free_share
from pruning.search.runs import Measurement, Runs, with_counts
from pruning.search.scores import BlockFitness

_COMPARING: Final = "comparing with the original model"


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

    ahead = 0

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
        self._kept = KeptStates(
            subject.sparse[: len(subject.sparse) + 1 - fewest_changes],
            free_share(device) if max_bytes is None else max_bytes,
        )
        self._plan: tuple[Removed, PruningPlan] | None = None

    def open(self) -> AbstractContextManager[None]:
        """Nothing: one process runs the whole model."""
        return nullcontext()

    def prepare(self, _candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Nothing: each candidate is measured by itself."""
        yield from ()

    def begin(self, removed: Removed, number: int) -> None:
        """Nothing: each runs when it is measured."""

    def run(self, removed: Removed, number: int) -> Measurement:
        """Measure a candidate on a batch."""
        batch, subject = self.batches[number], self.subject
        first, entry_BTD = self._kept.entry(removed, number)
        if self._plan is None or self._plan[0] != removed:
            self._plan = (removed, subject.plan_of(removed))
        with masked(subject.loaded, subject.family, self._plan[1]):
            done = run_from(subject.loaded, self._layers, batch, first, entry_BTD)
        self._kept.keep(removed, number, done)
        sums = drain(measure_hidden(subject.full, batch, done.hidden_ND, self._settings))
        return with_counts(sums, batch), done.layers

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
    ahead: int = field(default=0, init=False)
    _measurements: dict[Removed, dict[int, Measurement]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.num_batches = -(-len(self.samples) // self.samples.batch_size)  # of all processes
        self.num_layers = self.model.depth

    def open(self) -> AbstractContextManager[None]:
        """All runs are over; errors of what is done with them reach all processes."""
        return self.samples.processes.together()

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Measure these candidates on all batches; each process runs its own."""
        processes = self.samples.processes
        with processes.together():
            plans = {removed: self.plan_of(removed) for removed in candidates}
            all_plans = tuple(plans.values())
            dtype, digest = (
                resolve_dtype(self.running.dtype, self.model),
                self.samples.sequences.digest,
            )
            facts = (self.model.identity, dtype, self.samples.batch_size, digest)
            parts, asked = self._parts(len(plans)), EvaluationPlans(all_plans, all_plans)
            with partial_folder(self.folder, facts, processes) as at:
                running = run_plans(self.model, asked, [self.samples], self.running, at)
                ends = yield from parts.run("layers", running)
                own = yield from parts.by_phase(self._measure(ends, plans))
                layers = {removed: ends.layers(plan) for removed, plan in plans.items()}
                ends.clear()
        self._measurements = self._of_all_batches(own, layers)

    def _parts(self, candidates: int) -> Parts:
        """The pass through the layers, then the heads of all candidates."""
        tokens, scored = self.samples.sequences.num_tokens, int(self.samples.num_scored.sum())
        names = self.settings.measures
        costs = RunCosts.of(self.model, tokens, scored, names, by_layers=True)
        passes = dict(costs.one_pass([-1] * candidates))
        heads = passes.pop("compare")
        return Parts({"layers": passes, _COMPARING: {"compare": heads}})

    def _measure(
        self, ends: Ends, plans: Mapping[Removed, PruningPlan]
    ) -> Generator[Progress, None, dict[Removed, list[Mapping[str, FloatArray]]]]:
        """What is measured of each candidate on each batch of this process."""
        original = partial(ends.hidden, self.samples, None)
        folder = self.running.placement.hidden_states_dir
        full = yield from full_side(ends.head, self.samples, original, folder)
        by_candidate: dict[Removed, list[Mapping[str, FloatArray]]] = {}
        with closing(full):
            for removed, plan in plans.items():
                yield Progress(_COMPARING, len(by_candidate), len(plans), "plans")
                by_candidate[removed] = [
                    drain(
                        measure_hidden(
                            full, batch, ends.hidden(self.samples, plan, batch), self.settings
                        )
                    )
                    for batch in self.samples.batches()
                ]
        return by_candidate

    def _of_all_batches(
        self,
        own: Mapping[Removed, Sequence[Mapping[str, FloatArray]]],
        layers: Mapping[Removed, int],
    ) -> dict[Removed, dict[int, Measurement]]:
        """What all processes have measured, by candidate and batch."""
        every: dict[Removed, dict[int, Measurement]] = {}
        for removed, parts in own.items():
            sums = self.samples.gather(
                {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            )
            every[removed] = {
                batch.number: (
                    with_counts(
                        {name: all_N[batch.samples] for name, all_N in sums.items()}, batch
                    ),
                    layers[removed],
                )
                for batch in self.samples.all_batches()
            }
        return every

    def begin(self, removed: Removed, number: int) -> None:
        """Nothing: all candidates shared one pass."""

    def run(self, removed: Removed, number: int) -> Measurement:
        """The measurement of a candidate by `prepare`."""
        return self._measurements[removed][number]

    def run_base(self, _base: Removed, _number: int) -> int:
        """Nothing: all candidates shared one pass."""
        return 0

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Nothing: no hidden states are kept."""

    def forget(self) -> None:
        """Nothing: no hidden states are kept."""


class RunFitness:
    """See `Fitness`: a block is a batch."""

    def __init__(self, runs: Runs, measure: str) -> None:
        self.runs, self._measure = runs, MEASURES[measure]
        self.num_blocks, self.num_layers = runs.num_batches, runs.num_layers
        self.ahead = -(-runs.ahead // runs.num_batches)
        self.open, self.hold = runs.open, runs.hold

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Measure what the candidates share; the seconds that this took for each."""
        started = time.monotonic()
        yield from self.runs.prepare(candidates)
        return (time.monotonic() - started) / len(candidates)

    def begin(self, removed: Removed) -> None:
        """Begin to run a candidate on all blocks."""
        for number in range(self.num_blocks):
            self.runs.begin(removed, number)

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
