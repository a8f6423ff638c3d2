"""A selection: criterion, statistics and sparsity -> ranking and plan; for commands and pages."""

from dataclasses import dataclass

import pandas as pd

from analysis.choose import Choice, choose_stats, parse_corpus_weight
from analysis.criteria import Criterion, get_criterion
from analysis.model import MoEModel
from analysis.ranking import rank_experts
from analysis.store import StatsStore
from app.task_requests import SelectRequest
from pruning.plan import Provenance, PruningPlan, model_ref, select_experts, tool_version
from pruning.schedules import uniform


@dataclass(frozen=True, eq=False)
class Selection:
    """What was asked for, and the statistics that answer it."""

    request: SelectRequest
    model: MoEModel
    criterion: Criterion
    choice: Choice

    def ranking(self) -> pd.DataFrame:
        """Table `layer, expert, score, saliency, rank, num_tokens`."""
        return rank_experts(self.criterion, self.choice.stats, self.request.gate)

    def plan(self) -> PruningPlan:
        """The experts that stay.

        Raises:
            PlanError: the sparsity leaves a layer with fewer than top_k experts.
        """
        allocation = uniform(self.model.layers, self.request.fraction)
        provenance = Provenance(
            criterion=self.criterion.name,
            gate=self.request.gate if self.criterion.uses_gate else "",
            corpora=self.choice.corpora,
            runs=tuple(run.manifest.run_id for run in self.choice.runs),
            schedule=self.request.schedule,
            sparsity=self.request.sparsity,
            tool_version=tool_version(),
        )
        return select_experts(
            self.ranking(), allocation, model=model_ref(self.model), provenance=provenance
        )


def select(request: SelectRequest, model: MoEModel, store: StatsStore) -> Selection:
    """Find the statistics that a request needs.

    Raises:
        UserError: an unknown criterion, or no statistics that fit.
    """
    criterion = get_criterion(request.criterion)
    corpora = [parse_corpus_weight(text) for text in request.corpora]
    choice = choose_stats(criterion, store, model, corpora, request.runs)
    return Selection(request, model, criterion, choice)
