"""Rankings of a model's experts or neurons by a criterion, and the statistics behind them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.calibration.weights import weight_statistics
from analysis.corpora import corpus_name
from analysis.criteria import CRITERIA, Criterion
from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.machine.launcher import launched_world
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.progress import Progress
from analysis.ranking.choose import Choice, choose_stats, parse_corpus_weight, routed_choice
from analysis.ranking.experts import rank_experts
from analysis.ranking.neurons import chosen_neurons, neuron_saliency, rank_neurons, read_neurons
from analysis.ranking.norms import NeuronScores
from analysis.ranking.super_experts import SuperExperts, super_experts
from analysis.stats.blend import Part
from analysis.stats.store import StatsStore
from analysis.stats.tables import ExpertStats, Gate
from pruning.measures.curves import Sensitivity
from pruning.plan.active import Routing
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.plan.shown import DisplayMixin, Facts
from pruning.requests.plan import SpecRequest
from pruning.schedules import Evidence, fold_ranking
from pruning.spec.base import command_line, option_words, repeated
from pruning.spec.spec import FREQUENCY, PlanSpec

_OF_LIMITS = ("multiple_of", "floor", "pin", "drop", "keep_super")
_OF_ORDER = ("granularity", "criterion", "gate", *_OF_LIMITS)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(DisplayMixin):
    """A model's experts or neurons ranked by a criterion, for any budget."""

    model: MoEModel
    criterion: Criterion
    choice: Choice[Any]  # the statistics that it reads; for neurons, the table of `read_neurons`
    tokens: Choice[Any] | None = None  # of a calibration, where schedule or limits read one
    gate: Gate = "applied"
    granularity: str = EXPERT_GRANULARITY
    sensitivity: Sensitivity | None = None  # of `with_sensitivity`, for the measured schedule

    @property
    def place_words(self) -> list[str]:
        """The model and its statistics, as words of a command line."""
        return [self.model.name]

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows; `table` has the numbers."""
        return {
            "model": self.model.name,
            "criterion": self.criterion.name,
            "gate": self.gate if self.criterion.uses_gate else "none",
            "corpora": " + ".join(self.choice.corpora) or "none",
            "granularity": self.granularity,
            "experts": self.model.num_experts,
        }

    @property
    def by_neuron(self) -> bool:
        """Whether neurons are ranked, and not experts."""
        return self.granularity == NEURON_GRANULARITY

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table `layer, expert, score, saliency, rank, num_tokens`; for neurons also `neuron`."""
        if self.by_neuron:
            return rank_neurons(self.criterion, self.choice.stats)
        return rank_experts(self.criterion, self.choice.stats, self.gate)

    @cached_property
    def neurons(self) -> NeuronScores:
        """Layer -> for each expert, the saliency of each of its neurons; higher = keep."""
        return neuron_saliency(self.criterion, self.choice.stats, computed_widths(self.model))

    @cached_property
    def routing(self) -> Routing | None:
        """How often each expert was chosen, if a calibration ranks neurons."""
        if not self.by_neuron or self.criterion.source != "routed":
            return None
        # An expert without neurons has no rows.
        every = {layer.index: [0.0] * layer.num_experts for layer in self.model.layers}
        first = self.choice.stats.drop_duplicates(["layer", "expert"])
        columns = first[["layer", "expert", "num_tokens"]]
        for layer, expert, tokens in columns.itertuples(index=False):
            every[int(layer)][int(expert)] = float(tokens)
        return every

    @cached_property
    def supers(self) -> SuperExperts | None:
        """The super experts by the calibration behind it; None without a calibration."""
        choices = filter(None, (self.choice, self.tokens))
        every = [run for choice in choices for run in choice.runs if run.manifest.kind == "routed"]
        runs = list({run.manifest.run_id: run for run in every}.values())
        return super_experts(runs) if runs else None

    def settled(self, spec: PlanSpec) -> PlanSpec:
        """The spec with the super experts pinned, if it says `keep_super`."""
        if not spec.limits.keep_super:
            return spec
        if (supers := self.supers) is None:
            raise PlanError("--keep-super needs a calibration, and none was read; name a corpus.")
        if supers.unknown:
            raise PlanError(
                f"--keep-super needs the largest outputs of experts, which {supers.unknown[0]} "
                "of an earlier version does not have; `moeprune runs remove` it and calibrate "
                "again."
            )
        pinned = {layer: frozenset(ids) for layer, ids in spec.limits.pin.items()}
        for layer, experts in supers.experts.items():
            pinned[layer] = pinned.get(layer, frozenset()) | experts
            if both := experts & set(spec.limits.drop.get(layer, ())):
                raise PlanError(
                    f"Expert {min(both)} of layer {layer} is a super expert, which --keep-super "
                    "keeps and --drop removes; leave one of the two out."
                )
        pin = {layer: tuple(sorted(pinned[layer])) for layer in sorted(pinned)}
        # Not `changed`: the spec may lack a budget, which that refuses.
        limits = spec.limits.model_copy(update={"keep_super": False, "pin": pin})
        return spec.model_copy(update={"limits": limits})

    @cached_property
    def evidence(self) -> Evidence:
        """What schedules may look at: saliency, and token counts if there are any."""
        layers, frequency = self.model.layers, None
        if self.tokens is not None:
            by_tokens = rank_experts(CRITERIA[FREQUENCY], self.tokens.stats, self.gate)
            frequency = fold_ranking(by_tokens, layers)
        saliency = fold_ranking(self.table, layers)
        return Evidence(saliency, frequency, sensitivity=self.sensitivity)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Selection(Ranking):
    """A ranking, and the request for a plan behind it."""

    request: SpecRequest

    @property
    def spec(self) -> PlanSpec:
        """What is asked of the plan."""
        return self.request.plan

    @property
    def cache_key(self) -> tuple[object, ...]:
        """The model, the request, and the statistics as they were read."""
        tables = filter(None, (self.choice, self.tokens, self.sensitivity))
        keys = [table.cache_key for table in tables]
        return self.model.identity, self.request.cache_key, *keys

    @property
    def place_words(self) -> list[str]:
        """The model and its statistics, as words of a command line."""
        return [self.request.model, *option_words(self.request, only=("stats_dir",))]


def select(
    request: SpecRequest,
    model: MoEModel,
    store: StatsStore,
    parts: Sequence[Part] = (),
    *,
    choose: Callable[..., Choice[Any]] = choose_stats,
) -> Selection:
    """Find the statistics of experts that a request reads.

    `parts` are calibration runs to read instead of those that the request names; `choose` finds the
    statistics of a criterion, a page's with a cache.
    """
    ranked_by = request.plan.ranking
    criterion, runs = ranked_by.rule, ranked_by.runs
    corpora = [parse_corpus_weight(text) for text in ranked_by.corpora]
    routed = criterion.source == "routed"
    tokens = routed_choice(parts) if parts else None
    if tokens is not None:
        choice = tokens if routed else choose(criterion, store, model)
    elif request.plan.reads_text and not routed:
        # The criterion reads no corpora, so a corpus or a run is for the schedule or the limits.
        tokens = choose(CRITERIA[FREQUENCY], store, model, corpora, runs)
        choice = choose(criterion, store, model)
    else:
        choice = choose(criterion, store, model, corpora, runs)
        tokens = choice if isinstance(choice.stats, ExpertStats) else None
    return Selection(model, criterion, choice, tokens, ranked_by.gate, request=request)


def select_measured(
    request: SpecRequest, model: MoEModel, store: StatsStore, parts: Sequence[Part] = ()
) -> Generator[Progress, None, Selection]:
    """The statistics of experts or neurons that a request reads, see `select`.

    Missing statistics of weights are measured, which takes seconds.
    """
    ranked_by = request.plan.ranking
    criterion = ranked_by.rule
    if not ranked_by.by_neuron:
        yield from weights_measured(criterion, model, store)
        return select(request, model, store, parts)
    if parts:
        choice = chosen_neurons(parts)
    else:
        corpora = [parse_corpus_weight(text) for text in ranked_by.corpora]
        choice = yield from read_neurons(criterion, store, model, corpora, ranked_by.runs)
    return Selection(model, criterion, choice, granularity=NEURON_GRANULARITY, request=request)


def weights_measured(
    criterion: Criterion, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, None]:
    """Measure the model's weights if the criterion reads them and the store lacks them."""
    # The processes of a launcher must all take part, also where only some see the statistics.
    if criterion.source == "weights" and (
        launched_world() > 1 or not store.of_model(model.identity, "weights")
    ):
        yield from weight_statistics(model, store)


def recorded(spec: PlanSpec, ranking: Ranking | None = None) -> dict[str, Any]:
    """A spec as plain JSON for records: corpora as they were read, files by their names."""
    choices = [ranking.choice, ranking.tokens] if ranking else []
    corpora = next((each.corpora for each in choices if each and each.corpora), ())
    spread = spec.spread
    changes: dict[str, Any] = {"measured_on": tuple(map(corpus_name, spread.measured_on))}
    for name in ("schedule_file", "kept_experts", "kept_neurons"):
        if path := getattr(spread, name):
            changes[name] = path.name
    if spec.reads_text:
        changes["corpora"] = corpora
    return spec.changed(**{name: value for name, value in changes.items() if value}).to_json()


def sensitivity_for(ranking: Ranking, spec: PlanSpec) -> Sensitivity:
    """The sensitivity that the measured schedule reads."""
    if ranking.sensitivity is None:
        raise needs_sensitivity(ranking, spec)
    return ranking.sensitivity


def needs_sensitivity(ranking: Ranking, spec: PlanSpec) -> PlanError:
    """The error that names the command to measure what a plan needs."""
    corpora = spec.spread.measured_on
    on = f" on {' and '.join(corpora)}" if corpora else ""
    model, *statistics = ranking.place_words
    words = ["sensitivity", model, *option_words(spec, only=_OF_ORDER), *statistics]
    words += repeated("--calibrated-on", spec.ranking.corpora)
    words += repeated("--corpus", corpora or ("CORPUS",))
    return PlanError(
        f"The sensitivity of this order by {spec.ranking.criterion} was not measured{on} yet; run "
        f"`{command_line(*words)}` first."
    )


def criterion_badge(criterion: Criterion) -> str:
    """Exponents of a unified variant, or the source of another criterion."""
    if criterion.exponents is not None:
        b, alpha, beta = criterion.exponents
        return f"b={b} α={alpha} β={beta}"  # noqa: RUF001  (Greek on purpose)
    return {"routed": "calibrated", "weights": "weights only", "none": "no data"}[criterion.source]
