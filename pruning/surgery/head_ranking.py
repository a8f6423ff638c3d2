"""Rankings of the experts of prediction heads: by the plan's own calibrations, else by weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.calibration.weights import check_measurable, measure_weights
from analysis.criteria import CRITERIA, Criterion, get_criterion
from analysis.drain import drain
from analysis.errors import CheckpointError, CriterionError, UnsupportedModelError
from analysis.lazy import pd
from analysis.model.checking import check_layers
from analysis.model.heads import Head, head_experts, prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.ranking.experts import has_columns, rank_experts
from analysis.stats.blend import blended_heads
from analysis.stats.columns import Gate
from analysis.stats.manifest import HEADS, RunManifest, measured_model
from analysis.stats.store import StatsStore
from analysis.stats.tables import ExpertStats, WeightStats
from pruning.plan.heads import WEIGHT_CRITERION, HeadRanking
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.routing import ranked_by
from pruning.plan.selection import Allocation, select_experts

# With statistics of heads, if they lack what the plan's own criterion reads.
_ROUTED_CRITERION = "reap"


def ranked_in_words(criterion: str, runs: Sequence[str]) -> str:
    """By what the experts of heads are ranked: a criterion's name, and the runs that it reads."""
    label = get_criterion(criterion).label
    return f"{label}, measured in {' and '.join(runs)}" if runs else f"{label} of their weights"


@dataclass(frozen=True, eq=False)
class MeasuredHeads:
    """By what the calibrations behind a plan measured."""

    rule: Criterion
    gate: Gate
    stats: ExpertStats  # layers as in `head_experts`
    runs: tuple[str, ...]  # ids

    @property
    def criterion(self) -> str:
        """Name of the criterion."""
        return self.rule.name

    @property
    def words(self) -> str:
        """Criterion and runs, for people."""
        return ranked_in_words(self.criterion, self.runs)

    def refusal(self, head: Head, model: MoEModel) -> str:
        """Why it cannot rank a head, given as the model of its layers; empty if it can."""
        try:
            check_layers(model)
        except (CheckpointError, UnsupportedModelError) as error:
            return f"The head {head.name} cannot be pruned: {str(error).rstrip('.')}"
        return ""

    def kept(self, model: MoEModel, count: int) -> dict[str, dict[int, tuple[int, ...]]]:
        """The first `count` experts of each layer, as in `HeadPlan.kept`."""
        table = rank_experts(self.rule, self.stats, self.gate)
        allocation = Allocation(self.stats.layers, (count,) * len(self.stats.layers))
        kept = select_experts(table, allocation, model=model_ref(model)).kept
        kept_by_head: defaultdict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for head, index, layer in head_experts(model):
            kept_by_head[head][index] = kept[layer.index]
        return dict(kept_by_head)


@dataclass(frozen=True)
class WeighedHeads:
    """By the weights of the experts themselves."""

    criterion: str = WEIGHT_CRITERION
    runs: tuple[str, ...] = ()
    # What `measure_weights` gives, by name of the head; those that are not here are measured.
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, compare=False)
    # `HeadPlan.kept` of a finished export of the plan: taken as it is, nothing is measured.
    recorded: Mapping[str, Mapping[int, tuple[int, ...]]] | None = field(
        default=None, compare=False
    )

    @property
    def words(self) -> str:
        """Criterion and runs, for people."""
        return ranked_in_words(self.criterion, self.runs)

    def refusal(self, head: Head, model: MoEModel) -> str:
        """Why it cannot rank a head, given as the model of its layers; empty if it can."""
        try:
            check_layers(model)
            check_measurable(model)
        except (CheckpointError, UnsupportedModelError) as error:
            return (
                f"The experts of the head {head.name} cannot be ranked: no statistics of heads are "
                "at hand from the plan's runs (calibrate --group heads), and of its "
                f"weights: {str(error).rstrip('.')}"
            )
        return ""

    def kept(self, model: MoEModel, count: int) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
        """The first `count` experts of each layer, as in `HeadPlan.kept`."""
        if self.recorded is not None:
            return self.recorded
        heads = (head for head in prediction_heads(model) if head.has_experts)
        return {head.name: self._kept_of(head, model, count) for head in heads}

    def _kept_of(self, head: Head, model: MoEModel, count: int) -> dict[int, tuple[int, ...]]:
        alone = head.as_model(model)
        known = self.tables.get(head.name)
        table = drain(measure_weights(alone)) if known is None else known
        manifest = RunManifest("weights", head.name, "", measured_model(alone), (), {}, {})
        stats = WeightStats(manifest, table)
        ranking = rank_experts(get_criterion(self.criterion), stats, "applied")
        allocation = Allocation(alone.layers, (count,) * len(alone.layers))
        return dict(select_experts(ranking, allocation, model=model_ref(model)).kept)


def head_ranking(model: MoEModel, plan: PruningPlan, store: StatsStore) -> HeadRanking:
    """The ranking of heads by the plan's own runs; by weights unless the store has all, with heads.

    By the plan's criterion, or by REAP if that reads more than the routed tokens of a head.
    """
    parts = ranked_by(plan, store)
    measured = [part for part in parts if HEADS in part.run.manifest.files]
    if not measured or len(measured) < len(plan.provenance.runs):
        return WeighedHeads()
    stats = blended_heads(measured, tuple(layer for _, _, layer in head_experts(model)))
    try:
        criterion = get_criterion(plan.provenance.criterion)
    except CriterionError:
        criterion = CRITERIA[_ROUTED_CRITERION]
    is_measured = criterion.source == "routed" and criterion.score and has_columns(criterion, stats)
    if not is_measured or criterion.is_constant:
        criterion = CRITERIA[_ROUTED_CRITERION]
    gate: Gate = "renormalized" if plan.provenance.gate == "renormalized" else "applied"
    runs = tuple(part.run.manifest.run_id for part in measured)
    return MeasuredHeads(criterion, gate, stats, runs)
