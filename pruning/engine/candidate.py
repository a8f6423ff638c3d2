"""Evaluation of candidates: one loaded model, many plans, each applied by masking."""

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.drain import drain, with_steps
from analysis.families.base import MoEFamily
from analysis.numbers.arrays import FloatArray
from analysis.progress import Progress
from pruning.engine.changed_weights import ChangedWeights
from pruning.engine.full_side import FullSide, OutputHead, final_hidden
from pruning.engine.masking import masked
from pruning.measures.positions import POSITION_FUNCTIONS, Positions, log_probabilities
from pruning.measures.result import MEASURES, OF_FULL_MODEL, Evaluation, make_evaluation
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan

EVALUATING: Final = "evaluating"  # phase


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """What to measure at the scored positions."""

    measures: tuple[str, ...]  # names; `spec-dec` is ignored, see `speculative`
    seed: int = 42  # of the draws of `sap` and of the bootstrap

    @property
    def functions(self) -> tuple[str, ...]:
        """The keys of `POSITION_FUNCTIONS` that these measures sum."""
        names = [MEASURES[name].sums for name in self.measures]
        full = [OF_FULL_MODEL[name].sums for name in self.measures if name in OF_FULL_MODEL]
        return tuple(name for name in dict.fromkeys([*names, *full]) if name)


def measure_hidden(
    full: FullSide, batch: SampleBatch, hidden_ND: Tensor, settings: MeasureSettings
) -> Generator[int, None, dict[str, FloatArray]]:
    """Position function -> (samples of the batch,) float64 sums over the scored positions.

    `hidden_ND` (scored positions, width) are final hidden states of the candidate. Yields how many
    positions are measured.
    """
    names, rows = settings.functions, full.head.rows
    targets_N = torch.from_numpy(batch.targets)
    # One generator per sample, so that neither batches nor candidates change a draw.
    counts = zip(batch.samples, batch.counts, strict=True)
    uniforms = [np.random.default_rng([settings.seed, n]).random(count) for n, count in counts]
    uniforms_N = torch.from_numpy(np.concatenate(uniforms))
    sums: defaultdict[str, list[Tensor]] = defaultdict(list)
    for start in range(0, len(hidden_ND), rows):
        part = slice(start, start + rows)
        with torch.no_grad():
            candidate_NV = log_probabilities(full.head(hidden_ND[part]))
            full_NV = full.log_probabilities(batch, start)
            others = (tensor[part].to(full_NV.device) for tensor in (targets_N, uniforms_N))
            at = Positions(full_NV, candidate_NV, *others)
            for name in names:
                sums[name].append(POSITION_FUNCTIONS[name](at).cpu())
        yield min(start + rows, len(hidden_ND))
    starts = np.cumsum(batch.counts) - batch.counts
    return {name: np.add.reduceat(torch.cat(parts).numpy(), starts) for name, parts in sums.items()}


def run_candidate(
    model: PreTrainedModel,
    family: MoEFamily,
    plan: PruningPlan | None,
    full: FullSide,
    settings: MeasureSettings,
) -> Generator[Progress, None, Evaluation]:
    """Evaluate a loaded model as if pruned by a plan; None evaluates it as it is.

    `full` is of the same model. The mask is removed afterwards.
    """
    hidden_of = partial(MaskedCandidates(model, family).hidden, full.samples, plan)
    return (yield from measure_candidate(full, settings, hidden_of))


def measure_candidate(
    full: FullSide,
    settings: MeasureSettings,
    hidden_of: Callable[[SampleBatch], Tensor],
    *,
    has_run: bool = False,
) -> Generator[Progress, None, Evaluation]:
    """Evaluate a candidate by its final hidden states of each batch; its head is that of `full`.

    Where it `has_run`, its head is all the work, which is told by chunks of logits; else by
    batches. Processes that share the samples get the same result.
    """
    samples, done = full.samples, 0
    total = sum(int(batch.counts.sum()) for batch in samples.batches())

    def reached(measured: int) -> Progress:
        return Progress(EVALUATING, done + measured, total, "tokens")

    parts: list[dict[str, FloatArray]] = []
    with samples.processes.together():
        for batch in samples.batches():
            yield reached(0)
            measuring = measure_hidden(full, batch, hidden_of(batch), settings)
            if has_run:
                parts.append((yield from with_steps(measuring, reached)))
            else:
                parts.append(drain(measuring))
            done += int(batch.counts.sum())
    yield reached(0)
    local_sums = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    all_sums = samples.gather(local_sums)
    sums = {name: samples.sums_of(values) for name, values in all_sums.items()}
    measures = [name for name in settings.measures if MEASURES[name].sums]
    return make_evaluation(measures, sums, seed=settings.seed)


@dataclass(frozen=True, slots=True)
class MaskedCandidates:
    """Candidates of a loaded model, each applied by masking."""

    model: PreTrainedModel
    family: MoEFamily
    changed: ChangedWeights = field(default_factory=ChangedWeights)
    has_run: ClassVar[bool] = False

    @property
    def head(self) -> OutputHead:
        """The head of the model."""
        return OutputHead(self.model)

    def hidden(self, _samples: Samples, plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
        """`final_hidden` of the candidate, masked only while it computes."""
        with candidate_of(self.model, self.family, plan, self.changed):
            return final_hidden(self.model, batch)


def candidate_of(
    model: PreTrainedModel,
    family: MoEFamily,
    plan: PruningPlan | None,
    changed: ChangedWeights | None = None,
) -> AbstractContextManager[None]:
    """Inside the block, the model computes as the candidate; None leaves it as it is."""
    return nullcontext() if plan is None else masked(model, family, plan, changed)
