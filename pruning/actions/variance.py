"""Variance of hidden states after each layer: of the original model, of plans and of a sweep."""

import time
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import model_validator

from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import LOADING, Costs, Parts, Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.actions.action import Action, Call, Outcome, Table
from pruning.actions.candidates import candidate_names, plans_by_file, plans_by_name
from pruning.option import Option
from pruning.plan.plan import PruningPlan, keep_all
from pruning.plan.variant_words import repaired_name
from pruning.records.variances import VarianceRecord, VarianceStore, variance_table
from pruning.requests.evaluation import HeldOutRequest, OneCorpus, SweepRequest
from pruning.requests.following import evaluate_command
from pruning.spec import options, plan_options
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora, expected_tokens, sweep_plans
from pruning.tasks.loading import check_records_folder, loaded_model, open_plan, run_settings
from pruning.tasks.repair import repair_parts, with_repairs


class VarianceRequest(HeldOutRequest):
    """Hidden states of the original model, and of plans, criteria at sparsities, or both."""

    asked_by = "variance"
    writes = "variance.csv"
    corpora: OneCorpus
    plans: tuple[Annotated[options.Plan, Option("plan.json to compare; repeatable.")], ...] = ()
    repair: options.Repair = False
    # Criteria, sparsities, calibrated_on, gate: every combination, as of a sweep.
    criteria: tuple[
        Annotated[options.Criterion, Option("Criterion to plan by as well; repeatable.")], ...
    ] = ()
    sparsities: tuple[
        Annotated[plan_options.Sparsity, Option("Of the plans by criteria; repeatable.")], ...
    ] = ()
    calibrated_on: tuple[options.CalibratedOn, ...] = ()
    gate: options.Gate = "applied"

    @model_validator(mode="after")
    def _fits_together(self) -> "VarianceRequest":
        if bool(self.criteria) != bool(self.sparsities):
            raise ValueError("--criterion and --sparsity belong together")
        _ = self.sweep  # validates it
        return self

    @property
    def sweep(self) -> SweepRequest | None:
        """The criteria at their sparsities; None without any."""
        return self.into(SweepRequest) if self.criteria else None


def _run(request: VarianceRequest) -> Steps[list[VarianceRecord]]:
    """Variance of hidden states of the original model and of plans, on the first corpus.

    Each record is stored with the statistics as soon as it is measured, and existing ones are
    reused. Returns those of the original model, of the request's plans, and of the sweep.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, VarianceStore(store.directories), model.identity)
    plans = yield from _plans(request, model, store)
    whole = Parts(_parts(request, model, plans))
    if request.repair:
        plans = yield from with_repairs(request, model, plans, whole)
    (drawn_samples, *_) = yield from drawn_corpora(request, model, store)
    from analysis.calibration.loading import resolve_dtype
    from pruning.engine.hidden_states import NUM_TOKENS, VARYING, run_variance, sample_tokens
    from pruning.engine.run import how_made
    from pruning.measures.samples import make_samples

    settings = run_settings(request, drawn_samples.sequences.longest)
    dtype = resolve_dtype(settings.dtype, model)
    changing = {"dtype": dtype, "seed": settings.seed, "tokens": NUM_TOKENS}
    record_store = VarianceStore(store.directories)
    records = [
        record_store.find(VarianceRecord.new(model, plan, drawn_samples.corpus, changing))
        for plan in plans
    ]
    missing = [number for number, record in enumerate(records) if not record.is_measured]
    if not missing:
        yield Progress("cached", len(plans), len(plans), "models", "all of it is measured already")
        return records
    samples = make_samples(drawn_samples.sequences, request.batch_size)
    token_masks = sample_tokens(samples, NUM_TOKENS, settings.seed)
    num_tokens = sum(int(mask.sum()) for mask in token_masks)
    for number in set(range(len(plans))) - set(missing):
        whole.end(f"model {number}")
    yield Progress(LOADING, 0, len(missing), "models", whole=whole.whole)
    with loaded_model(model, settings) as loaded:
        whole.finish(LOADING)
        for number in missing:
            started, name = time.monotonic(), f"model {number}"
            plan = plans[number] if number else None
            running = run_variance(loaded, model.family, plan, samples, token_masks)
            phases = Parts({VARYING: whole.costs(name)})
            values = yield from whole.run(name, phases.by_phase(running))
            run_facts = how_made(settings, time.monotonic() - started)
            records[number] = records[number].with_results(values.tolist(), num_tokens, run_facts)
            record_store.save(records[number])
    return records


def _plans(
    request: VarianceRequest, model: MoEModel, store: StatsStore
) -> Steps[list[PruningPlan]]:
    """The plan that keeps all, those of the request, and those of the sweep; none is repaired."""
    plans = [keep_all(model), *(open_plan(raw, model, store) for raw in request.plans)]
    if request.sweep is not None:
        plans += yield from sweep_plans(request.sweep, model, store)
    return plans


def _parts(
    request: VarianceRequest, model: MoEModel, plans: Sequence[PruningPlan]
) -> dict[str, Costs]:
    """What repairs of these plans, loading the model and each run of it are expected to cost."""
    repairs = repair_parts(model, plans) if request.repair else {}
    costs, models = layer_costs(model), range(len(plans) + len(repairs))
    running = costs.running(expected_tokens(request, model), *range(model.depth))
    loading: dict[str, Costs] = {LOADING: {"read": costs.reading(*costs.num_bytes)}}
    return repairs | loading | {f"model {number}": {"multiply": running} for number in models}


def _tell(call: Call[VarianceRequest], records: list[VarianceRecord]) -> Outcome:
    """The variances side by side, and the command that evaluates the plans."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    plans = plans_by_file(call, request.plans, model)
    facts = [record.plan for record in records[1:]]
    names = ["full", *candidate_names(plans_by_name(plans), facts, model, repair=request.repair)]
    names += [
        f"{plan.criterion} {plan.sparsity}"
        + (repaired_name("", plan.repair_tokens) if plan.repair else "")
        for plan in facts[len(names) - 1 :]
    ]
    table = variance_table(dict(zip(names, records, strict=True)))
    wide = table.pivot_table(index="layer", columns="model", values="variance", sort=False)
    last, tokens = wide.iloc[-1].to_dict(), int(table["num_tokens"].iloc[0])
    shown = wide.rename(columns={"full": "original"})
    ends = ", ".join(f"{value:.4g} ({name})" for name, value in shown.iloc[-1].items())
    return Outcome(
        f"{tokens:,} tokens; after the last layer {ends}",
        {"tokens": tokens, "last_layer": last},
        (Table.of("variance of hidden states", shown.reset_index()),),
        (evaluate_command(request, model, plans, request.corpora),),
        table,
    )


ACTION: Final = Action(
    VarianceRequest,
    _run,
    _tell,
    "variance demo --plan plan.json --corpus demo-math",
    "hidden states of {about}",
    "evaluate.hidden",
)
