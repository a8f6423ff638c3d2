"""Sensitivity: curves of an order on corpora, and the plans that follow from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from analysis.corpora.sequences import TokenSequences
from analysis.machine.launcher import launched_world
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import NOTHING, Costs, Parts, Progress, Whole, changed, scaled
from analysis.stats.manifest import Part
from analysis.stats.store import StatsStore, stats_store
from pruning.measurements.block import SampleSet
from pruning.measures.curves import Curves, Sensitivity
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.names import CostName
from pruning.measures.points import (
    MEASURES,
    MOVES,
    WHOLE,
    Point,
    curve_points,
    fewer_points,
)
from pruning.plan.expert_sizes import check_fewer
from pruning.plan.experts_per_token import fewer_in_all
from pruning.plan.units import Units
from pruning.planning.files import check_spec
from pruning.planning.make import budget_of, units_of
from pruning.planning.measured import Order, order_of
from pruning.planning.measured_bits import bits_order, bits_points
from pruning.planning.per_token import order_per_token
from pruning.planning.ranking import Ranking
from pruning.records.evaluation import EvaluationRecord
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.repair.costs import repair_costs
from pruning.requests.evaluation import EvaluateRequest, SensitivityRequest, TopKRequest
from pruning.schedules import Evidence
from pruning.spec.spec import PlanSpec
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora, evaluate_run, evaluation_costs, expected_tokens
from pruning.tasks.loading import (
    check_records_folder,
    quiet_transformers,
    run_settings,
    together,
)

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from analysis.calibration.shares import Share
    from pruning.measures.samples import Samples
    from pruning.search.costs import RunCosts
    from pruning.search.runs import Runs
    from pruning.search.sensitivity import Aim, Measuring, NewPlans, Round

CurvesRequest = SensitivityRequest | TopKRequest
# Budget, as options -> from the sensitivity what layers can lose, and how much goes in all.
Budgets = Mapping[str, Callable[[Sensitivity], tuple[Units, int]]]


@dataclass(frozen=True, eq=False)
class CorpusMeasurement:
    """The measurements on one corpus."""

    record: SensitivityRecord
    curves: Curves
    losses: Curves  # the same of the loss increase
    units: Units  # what layers can lose in this order
    layers: int  # layer evaluations of this run, each on one batch
    batches: int


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measurements of an order."""

    corpora: tuple[CorpusMeasurement, ...]
    # Budget, as options -> the plan over all corpora and its improvements.
    rounds: Mapping[str, "list[Round]"]
    bits: tuple[CorpusMeasurement, ...] = ()  # of layers in fewer bits, see `bits_order`
    # Of the plans as they are and repaired, by corpus and then by plan; if repairs are asked for.
    evaluations: Sequence[EvaluationRecord] = ()


def sensitivity_run(request: SensitivityRequest, parts: Sequence[Part] = ()) -> Steps[Measurement]:
    """Measure missing points of the curves on each corpus, then the plans asked for on all.

    `parts` are calibration runs to rank by instead of those that the request names.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    specs = request.specs()
    for spec in specs if request.budgets else ():
        check_spec(spec, model)
    check_records_folder(request.stats_dir, SensitivityStore(store.directories), model.identity)
    study = Study.of(request, model, store)
    expected = _parts(request, model, expected_tokens(request, model))
    later = sum(map(Whole, expected.values()), NOTHING)
    ranking = yield from changed(study.rank(specs[0], parts), partial(_before, later))
    draws = yield from drawn_corpora(request, model, store)
    order, words = order_of(ranking, specs[0]), request.budget_words
    budgets = {
        name: partial(_budget, ranking, spec) for name, spec in zip(words, specs, strict=False)
    }
    points = curve_points(order.units, request.levels)
    for name in request.bits:
        check_fewer(model, name)
    in_bits = [_Cuts(bits_order(model), bits_points(model, request.bits))] if request.bits else []
    subject = _Subject(model, _Cuts(order, points), draws, tuple(in_bits))
    measuring = _sitting(request, subject, store, budgets)
    if not request.repair:
        return (yield from measuring)
    whole = Parts(_parts(request, model, sum(draw.sequences.num_tokens for draw in draws)))
    measurement = yield from whole.run("measure", measuring)
    plans = tuple(
        study.plan_of(study.measured(replace(ranking, spec=spec))).to_dict() for spec in specs
    )
    evaluation = request.into(EvaluateRequest, plans=plans, measures=("nll", request.cost))
    evaluations = yield from whole.run("evaluate", evaluate_run(evaluation))
    return replace(measurement, evaluations=evaluations)


def _before(later: Whole, step: Progress) -> Progress:
    """A step of work, as measuring weights is, before other work."""
    if step.whole is None or not step.whole.total:
        return step
    return replace(step, whole=step.whole + later)


def topk_run(request: TopKRequest) -> Steps[Measurement]:
    """Measure missing points of what fewer experts per token cost, on each corpus."""
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, SensitivityStore(store.directories), model.identity)
    order = order_per_token(model)
    budgets = {
        f"--mean-top-k {mean}": partial(_mean, order.units, fewer_in_all(model, mean))
        for mean in request.means
    }
    draws = yield from drawn_corpora(request, model, store)
    cuts = _Cuts(order, fewer_points(order.units, request.levels))
    return (yield from _sitting(request, _Subject(model, cuts, draws), store, budgets))


def _mean(units: Units, total: int, _: Sensitivity) -> tuple[Units, int]:
    return units, total


@dataclass(frozen=True, eq=False)
class _Cuts:
    """An order, and the points of its layers alone that are measured."""

    order: Order
    points: Sequence[Point]


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is measured on the samples of corpora."""

    model: MoEModel
    cuts: _Cuts
    draws: Sequence[DrawnSamples]
    in_bits: tuple[_Cuts, ...] = ()  # measured too; no budget is of these


def _sitting(
    request: CurvesRequest, subject: _Subject, store: StatsStore, budgets: Budgets
) -> Steps[Measurement]:
    """Measure with a model that is loaded once."""
    from analysis.calibration.loading import offload_space

    quiet_transformers()
    settings = run_settings(request, max(draw.sequences.longest for draw in subject.draws))
    with offload_space(settings.placement) as offload:
        sitting = _LazyModel(request, subject, settings, offload)
        curves = SensitivityStore(store.directories)
        yield from curves.table.notes(subject.model.identity)
        return (yield from _measure(subject, sitting, curves, budgets))


def _parts(request: SensitivityRequest, model: MoEModel, tokens: int) -> dict[str, Costs]:
    """What a measurement on so many tokens costs, and plans with their repairs if asked for."""
    plans, (curves, again) = len(request.budget_words), sensitivity_costs(request, model, tokens)
    measuring = Whole(curves) + Whole(scaled(again, plans * request.refine))
    if not request.repair:
        return {"measure": measuring.total}
    evaluating = Whole(evaluation_costs(model, tokens, 2 * plans))
    repairs = Whole(scaled(repair_costs(model), plans))
    return {"measure": measuring.total, "evaluate": (repairs + evaluating).total}


def sensitivity_costs(request: CurvesRequest, model: MoEModel, tokens: int) -> tuple[Costs, Costs]:
    """What the curves of an order cost on so many tokens, and a round that refines a plan."""
    from pruning.search.costs import RunCosts

    layers = range(len(model.layers))
    costs = RunCosts.of(model, tokens, tokens, MEASURES, by_layers=request.stream_layers)
    bits = request.bits if isinstance(request, SensitivityRequest) else ()
    levels = request.levels + len(bits)
    positions = [WHOLE, *(layer for layer in layers for _ in range(levels))]
    moves = [WHOLE, *(layer for layer in layers for _ in MOVES)]
    return costs.whole(positions), costs.runs(moves)


class _LazyModel:
    """A model that is loaded once, at the first measurement."""

    def __init__(
        self,
        request: CurvesRequest,
        subject: "_Subject",
        settings: Any,
        offload: "Path | None",
    ) -> None:
        self.request, self.model = request, subject.model
        self._draws, self._points = subject.draws, subject.cuts.points
        self._settings, self._offload = settings, offload
        self._loaded: PreTrainedModel | None = None
        self._share: Share | None = None  # instead, in each of several processes

    def work(self, draw: DrawnSamples, store: SensitivityStore, order: Order) -> "Measuring":
        """The measurement of an order on the samples of a corpus."""
        from analysis.calibration.distributed import join
        from analysis.calibration.loading import resolve_dtype
        from pruning.engine.candidate import MeasureSettings
        from pruning.engine.run import how_made
        from pruning.measures.samples import make_samples
        from pruning.search.sensitivity import Measuring

        processes, streams = join(), self.request.stream_layers
        sharing = processes if streams else None
        samples = make_samples(draw.sequences, self.request.batch_size, sharing)
        dtype, plan_of = resolve_dtype(self._settings.dtype, self.model), order.plan_of
        record = SensitivityRecord.new(self.model, order.ref, order.sizes, draw, dtype)

        def load() -> "Steps[Runs]":
            from pruning.search.fitness import MaskedRuns, StreamedRuns, subject_of
            from pruning.search.shared_runs import SharedRuns, shared_subject

            measured = MeasureSettings(MEASURES)
            if streams:
                return StreamedRuns(
                    self.model, samples, self._settings, plan_of, measured, store.folder
                )
            if processes.world > 1:
                share = yield from self._load_share()
                shared = yield from shared_subject(self.model, share, samples, plan_of)
                return SharedRuns(shared, measured)
            loaded = yield from self._load(draw.sequences)
            return MaskedRuns(
                (yield from subject_of(self.model, loaded, samples, plan_of)), measured
            )

        return Measuring(
            store,
            record,
            samples,
            SampleSet(draw.sequences.corpus, draw.sequences.digest, dtype, draw.facts["seed"]),
            plan_of,
            load,
            how_made(self._settings),
            costs=self._costs(samples),
            stay=order.stay,
            is_loaded=lambda: self._loaded is not None or self._share is not None,
            processes=processes,
        )

    def _costs(self, samples: "Samples") -> "RunCosts":
        from pruning.search.costs import RunCosts

        tokens, positions = samples.sequences.num_tokens, int(samples.num_scored.sum())
        by_layers = self.request.stream_layers
        return RunCosts.of(self.model, tokens, positions, MEASURES, by_layers=by_layers)

    def _load(self, sequences: TokenSequences) -> "Steps[PreTrainedModel]":
        from pruning.search.fitness import load_for

        if self._loaded is None:
            self._loaded = yield from load_for(self.model, sequences, self._settings, self._offload)
        return self._loaded

    def _load_share(self) -> "Steps[Share]":
        from pruning.search.costs import RunCosts
        from pruning.search.shared_runs import load_search_share

        if self._share is None:
            tokens = sum(draw.sequences.num_tokens for draw in self._draws)
            costs = RunCosts.of(self.model, tokens, tokens, MEASURES, by_layers=False)
            passes = costs.passes([point.position for point in self._points])
            longest = max((draw.sequences for draw in self._draws), key=lambda of: of.longest)
            self._share = yield from load_search_share(
                self.model, longest, self._settings, costs.by_layer(passes)
            )
        return self._share


def _measure(
    subject: _Subject, sitting: _LazyModel, store: SensitivityStore, budgets: Budgets
) -> Steps[Measurement]:
    from pruning.search.sensitivity import (
        MEASURING,
        Aim,
        NewPlans,
        measure_curves,
        refinement_parts,
    )

    request, cuts = sitting.request, subject.cuts
    every = [
        (sitting.work(draw, store, own.order), own)
        for own in (cuts, *subject.in_bits)
        for draw in subject.draws
    ]
    works = [work for work, own in every if own is cuts]
    curves = list[Curves]()
    try:
        expected = {str(n): work.expected(own.points) for n, (work, own) in enumerate(every)}
        if not request.stream_layers:
            expected = _read_once(expected)
        units = cuts.order.units
        half, new = tuple(most // 2 for most in units.most), NewPlans()
        more = refinement_parts(works, units, half, request.refine, new).whole.total
        parts = Parts(expected | dict.fromkeys(budgets, more))
        yield Progress(MEASURING, 0, 0, whole=parts.whole)  # before anything is written
        for number, work in enumerate(works):
            measuring = measure_curves(work, cuts.points, request.cost)
            curves.append((yield from parts.run(str(number), measuring)))
            if not budgets:
                work.release()
        spread = Sensitivity(tuple(curves), request.cost, request.across)
        aims = {
            words: Aim(*budget_by(spread), request.refine, request.cost, request.across)
            for words, budget_by in budgets.items()
        }
        rounds = yield from _refined(works, spread, aims, parts, new)
        for work in works:
            work.release()
        for number, (work, own) in list(enumerate(every))[len(works) :]:
            yield from parts.run(str(number), work.measure(own.points))
            work.release()
    except BaseException:
        # What several processes have measured is in the table, in no order that a record keeps.
        if launched_world() == 1:
            for work, _ in every:
                work.finish()
        raise
    with together():  # no process reads the records before the first one has written them
        records = [work.finish() for work, _ in every]
    measured = [
        _of_corpus(record, work, own, request.cost)
        for record, (work, own) in zip(records, every, strict=True)
    ]
    return Measurement(tuple(measured[: len(works)]), rounds, tuple(measured[len(works) :]))


def _refined(
    works: "Sequence[Measuring]",
    spread: Sensitivity,
    aims: "Mapping[str, Aim]",
    parts: Parts,
    new: "NewPlans",
) -> "Steps[dict[str, list[Round]]]":
    """The rounds of each plan, which is a part by its name."""
    from pruning.search.sensitivity import refine, refinement_parts

    firsts = {words: spread.solution(aim.units, aim.total) for words, aim in aims.items()}
    rounds = dict[str, "list[Round]"]()
    for words, aim in aims.items():
        for later in list(aims)[len(rounds) + 1 :]:  # by its moves, and as the rounds so far went
            removed = firsts[later].removed
            refining = refinement_parts(works, aims[later].units, removed, aim.rounds, new)
            parts.expect(later, refining.whole.total)
        rounds[words] = yield from parts.run(words, refine(works, firsts[words], aim, new))
    return rounds


def _of_corpus(
    record: SensitivityRecord, work: "Measuring", cuts: _Cuts, cost: CostName
) -> CorpusMeasurement:
    from pruning.search.sensitivity import known_curves

    return CorpusMeasurement(
        record,
        known_curves(work, cuts.points, cost),
        known_curves(work, cuts.points, "nll"),
        cuts.order.units,
        work.layers,
        len(work.batches),
    )


def _read_once(expected: Mapping[str, Costs]) -> dict[str, Costs]:
    """What measurements cost whose model is loaded once, by the first that needs it."""
    readers = [n for n, costs in expected.items() if costs.get("read")]
    return {
        n: {**costs, "read": 0.0} if n in readers[1:] else costs for n, costs in expected.items()
    }


def _budget(ranking: Ranking, spec: PlanSpec, spread: Sensitivity) -> tuple[Units, int]:
    """What a plan can remove from each layer, and its budget, which the spread may decide."""
    units = units_of(ranking, spec)
    budget = budget_of(spec, units, ranking.model, Evidence(sensitivity=spread))
    return units.by_pool, budget.total
