"""Evaluation in several processes, each with some of the layers; batches pass along the line.

The process that writes holds the end of the model, so it measures as if it had the whole one. The
others run the same passes in the same order, without waiting for what it measures.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.distributed import Sums
from analysis.calibration.line import Line
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.shares import HIDDEN, LayerWork, Share, load_share
from analysis.calibration.skeleton import HEAD, OUTPUT
from analysis.families.base import MoEFamily
from analysis.model.layer_costs import layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.progress import Progress
from pruning.engine.candidate import EVALUATING, candidate_of
from pruning.engine.changed_weights import ChangedWeights
from pruning.engine.full_side import OutputHead, final_hidden
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan

_AT: Final = "at"  # in a message: digest of the plan and the tokens that it is of

# A corpus, and the plan that runs over it; None is the original model.
RunOver = tuple[Samples, PruningPlan | None]


@dataclass(frozen=True, eq=False)
class SharedCandidates:
    """Candidates of a model whose layers several processes hold; all run the same `passes`."""

    share: Share
    family: MoEFamily
    passes: Sequence[RunOver]
    changed: ChangedWeights = field(default_factory=ChangedWeights)
    _plans: dict[str, PruningPlan] = field(default_factory=dict)
    has_run: ClassVar[bool] = False

    @property
    def model(self) -> PreTrainedModel:
        """The model, with weights in this share only."""
        return self.share.model

    @property
    def head(self) -> OutputHead:
        """The head of the model, in the last process of the line."""
        with self.share.after_layers():
            return OutputHead(self.model)

    def hidden(self, samples: Samples, plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
        """`final_hidden` of the candidate in the last process of the line, else what it sends."""
        leaving: list[Tensor] = []
        at = _digest(plan, batch)

        def forward(message: Sums) -> Sums:
            if _AT in message and not torch.equal(message[_AT], at):
                raise AssertionError(f"another plan or other tokens came, not batch {batch.number}")
            hidden_BTD = self.share.entering(batch.tokens, message)
            with (
                torch.no_grad(),
                candidate_of(self.model, self.family, self._own(plan), self.changed),
            ):
                leaving.append(self.share.run(batch.tokens, hidden_BTD))
            return {_AT: at, HIDDEN: leaving[0].cpu().contiguous()}

        line = self.share.line
        line.pass_on(forward)
        if not line.is_last:
            return leaving[0]
        with self.share.after_layers(leaving[0]):
            return final_hidden(self.model, batch)

    def follow(self) -> Generator[Progress, None, None]:
        """Run all passes in a process that measures nothing."""
        total = sum(len(samples) for samples, _ in self.passes)
        done = 0
        for samples, plan in self.passes:
            for batch in samples.batches():
                yield Progress(EVALUATING, done, total, "samples")
                self.hidden(samples, plan, batch)
                done += len(batch.samples)
        self.share.line.drain()

    def _own(self, plan: PruningPlan | None) -> PruningPlan | None:
        """What a plan does to the layers of this share; the same value for the same plan."""
        if plan is None:
            return None
        if plan.digest not in self._plans:
            self._plans[plan.digest] = plan.of_layers(self.share.layers)
        return self._plans[plan.digest]


def _digest(plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
    sha = hashlib.sha256(plan.digest.encode() if plan else b"")
    sha.update(batch.tokens.input_ids.tobytes())
    return torch.tensor(list(sha.digest()), dtype=torch.uint8)


def shared_candidates(
    model: MoEModel, settings: CalibrationSettings, line: Line, passes: Sequence[RunOver]
) -> SharedCandidates:
    """Load this process's share of the layers, in all processes of the line together."""
    costs, tokens = layer_costs(model), sum(of.sequences.num_tokens for of, _ in passes)
    running = [costs.running(tokens, layer) for layer in range(model.depth)]
    running[-1] += sum(
        logits_cost(model, int(samples.num_scored.sum())) for samples, plan in passes if plan
    )
    longest = max((samples for samples, _ in passes), key=lambda of: of.sequences.longest)
    first = next(longest.batches()).tokens
    work = LayerWork(running, first, (HEAD, OUTPUT))
    return SharedCandidates(
        load_share(model, longest.sequences, settings, line, work), model.family, passes
    )
