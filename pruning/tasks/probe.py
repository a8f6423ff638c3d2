"""Tasks that probe what pruning changes: answers, bins, hidden states."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.corpora.early import check_positions
from analysis.drain import drain
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, keep_all
from pruning.records.bins import (
    Bin,
    BinsRecord,
    BinsStore,
    RankedBy,
    expert_bins,
    neuron_bins,
)
from pruning.records.kept_answers import AnswerRecord, AnswerStore
from pruning.records.lens import LensQuestion, LensRecord, LensStore, check_text_length
from pruning.records.variances import VarianceRecord, VarianceStore
from pruning.requests.evaluation import AskRequest, BinsRequest, VarianceRequest
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora, sweep_plans
from pruning.tasks.loading import check_records_folder, loaded_model, open_plan, run_settings
from pruning.tasks.repair import with_named_repairs

if TYPE_CHECKING:
    from analysis.corpora.tokens import Tokenizer
    from pruning.records.kept_answers import Answer


@dataclass(frozen=True, slots=True)
class AskResult:
    """What came of a request to ask: answers to a prompt, a lens, or both."""

    answers: "list[Answer]"
    lens: LensRecord | None
    plans: Mapping[str, str]  # name of each plan -> its digest


def ask_run(request: AskRequest) -> Steps[AskResult]:
    """Answers of the original model and of plans, or the lens of a text; both are recorded."""
    model = load_model_index(request.model, revision=request.revision)
    stats = stats_store(request.stats_dir)
    store = LensStore(stats.directories)
    for records in (AnswerStore(stats.directories), store):
        check_records_folder(request.stats_dir, records)
    pruned = yield from _asked_plans(request, model, stats)
    from analysis.calibration.loading import load_tokenizer, resolve_dtype
    from pruning.engine.answers import Question, has_chat_format, prompt_ids, run_answers

    tokenizer = load_tokenizer(model, trust_remote_code=request.trust_remote_code, instead="")
    as_chat = bool(request.prompt and not request.raw and has_chat_format(tokenizer))
    ids = prompt_ids(
        tokenizer,
        request.prompt or str(request.text),
        as_chat=as_chat,
        arguments=request.template_args,
    )
    num_new = request.max_new_tokens if request.prompt else 0
    check_positions(model, len(ids) + num_new)
    settings = run_settings(request, len(ids) + num_new, batch_size=1)
    how: dict[str, object] = {"raw": request.raw}
    how |= {"template_args": request.template_args} if request.template_args else {}
    facts = {
        "dtype": resolve_dtype(settings.dtype, model),
        "max_new_tokens": request.max_new_tokens,
        **how,
    }
    digests = {name: each.digest for name, each in pruned.items()}
    asked = LensQuestion.model_validate(
        {"text": request.text}
        if request.text
        else {"prompt": request.prompt, "max_new_tokens": num_new, **how}
    )
    work = _Lenses(model, pruned, tokenizer, asked, str(facts["dtype"]), store)
    if request.lens:  # before the time that answers take
        check_text_length(len(ids) + request.max_new_tokens, len(ids))
    if request.text and (record := work.record(ids, 1)) and work.is_done(record):
        yield Progress("cached", 1, 1, "texts", "this text is scored under these plans already")
        return AskResult([], record, digests)
    answers: list[Answer] = []
    plans: dict[str, PruningPlan | None] = {"full": None, **pruned}
    yield Progress("loading the model", 0, len(plans), "models")
    with loaded_model(model, settings) as running:
        if request.prompt:
            question = Question(ids, tokenizer, request.max_new_tokens)
            answers = yield from run_answers(running, model.family, plans, question)
            _save_answers(request, model, plans, facts, answers)
        if not (request.text or request.lens):
            return AskResult(answers, None, digests)
        start = len(ids) if request.prompt else 1
        lens = yield from work.run(running, [*ids, *(answers[0].ids if answers else ())], start)
    return AskResult(answers, lens, digests)


def _asked_plans(
    request: AskRequest, model: MoEModel, store: StatsStore
) -> Steps[dict[str, PruningPlan]]:
    """The plans by name, and themselves repaired where that is asked for."""
    plans = {
        name: open_plan(raw, model, store)
        for name, raw in zip(request.names, request.plans, strict=True)
    }
    if request.repair:
        plans = yield from with_named_repairs(request, model, plans)
    return plans


def _save_answers(
    request: AskRequest,
    model: MoEModel,
    plans: Mapping[str, PruningPlan | None],
    facts: dict[str, object],
    answers: "Sequence[Answer]",
) -> None:
    """Store the pair of answers of each plan."""
    store = AnswerStore(stats_store(request.stats_dir).directories)
    for answer in answers[1:]:
        plan, pair = plans[answer.name], (answers[0], answer)
        if plan is not None:
            store.save(AnswerRecord.of(model, plan, (str(request.prompt), facts), pair))


@dataclass(frozen=True, slots=True)
class _Lenses:
    """Lenses of a model under some plans."""

    model: MoEModel
    plans: Mapping[str, PruningPlan]
    tokenizer: "Tokenizer"
    asked: LensQuestion
    dtype: str
    store: LensStore

    def record(self, ids: Sequence[int], start: int) -> LensRecord:
        """The stored record of these tokens, or a new one."""
        from pruning.engine.lens_run import token_texts

        check_text_length(len(ids), start)
        words = ids, token_texts(self.tokenizer, ids)
        return self.store.find(LensRecord.new(self.model, self.asked, words, self.dtype, start))

    def is_done(self, record: LensRecord) -> bool:
        """Whether the record has the original model and every plan."""
        done = {each.plan_digest for each in record.plans}
        return record.is_measured and all(each.digest in done for each in self.plans.values())

    def run(self, running: Any, ids: Sequence[int], start: int) -> Steps[LensRecord]:
        """Run what the record of these tokens lacks, and store it."""
        from pruning.engine.lens_run import run_lens

        record = yield from run_lens(running, self.model, self.plans, self.record(ids, start))
        self.store.save(record)
        return record


def bins_run(request: BinsRequest) -> Steps[BinsRecord]:
    """The loss that removing each bin of experts or neurons adds, on the first corpus.

    The record is stored with the statistics; if it exists, no model is loaded.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, BinsStore(store.directories))
    ranked, bins = yield from _order_and_bins(request, model, store)
    (drawn_samples, *_) = yield from drawn_corpora(request, model, store)
    from analysis.calibration.loading import resolve_dtype
    from pruning.engine.candidate import MeasureSettings, run_candidate
    from pruning.engine.full_side import run_full
    from pruning.engine.plan_sums import sums_of_plan
    from pruning.engine.run import how_made
    from pruning.measures.samples import make_samples

    settings = run_settings(request, drawn_samples.sequences.longest)
    changing = {"dtype": resolve_dtype(settings.dtype, model), "seed": settings.seed}
    record_store = BinsStore(store.directories)
    record = record_store.find(BinsRecord.new(model, ranked, bins, drawn_samples.corpus, changing))
    yield from record_store.table.notes()
    if not record.lacking:
        yield Progress("cached", len(bins), len(bins), "bins", "these bins are measured already")
        if not record.made:
            record_store.save(record := record.with_known())
        return record
    # Beside any bin the original model is measured, which may be all that lacks.
    missing = [each for each in bins if not record.knows(each.plan.digest)] or bins[:1]
    started, done = time.monotonic(), len(bins) - len(missing)
    samples = make_samples(drawn_samples.sequences, request.batch_size)
    measured = MeasureSettings(("nll",), settings.seed)
    yield Progress("loading the model", 0, len(bins), "bins")
    with loaded_model(model, settings) as loaded:
        full = yield from run_full(loaded, samples, folder=request.hidden_states_dir)
        with closing(full):
            for number, each in enumerate(missing, done):
                yield Progress("removing bins", number, len(bins), "bins")
                task = run_candidate(loaded, model.family, each.plan, full, measured)
                plans = sums_of_plan(model, each.plan, drain(task), samples)
                record = record.with_bin(plans)
                # At once, so that a killed run loses no bin.
                record_store.table.add_plans(
                    model.identity, plans, record.where, how_made(settings)
                )
    record = record.finished(how_made(settings, time.monotonic() - started))
    record_store.save(record)
    return record


def _order_and_bins(
    request: BinsRequest, model: MoEModel, store: StatsStore
) -> Steps[tuple[RankedBy, list[Bin]]]:
    """The order of the experts or neurons, and its bins."""
    how, by_neuron = request.binning, request.granularity == NEURON_GRANULARITY
    fields = {"neuron_scope": how.scope} if by_neuron else {}
    spec = request.spec_by(request.criterion, sparsity="0", **fields)
    ranking = yield from Study.of(request, model, store).rank(spec)
    ranked = RankedBy(
        request.criterion,
        request.gate if ranking.criterion.uses_gate else "",
        ranking.choice.corpora,
        tuple(run.manifest.run_id for run in ranking.choice.runs),
        request.granularity,
        how,
    )
    if by_neuron:
        return ranked, neuron_bins(ranking.neurons, model, how)
    return ranked, expert_bins(ranking.table, model, how)


FULL = "full"


def variance_run(request: VarianceRequest) -> Steps[dict[str, VarianceRecord]]:
    """Variance of hidden states of the original model and of plans, on the first corpus.

    Each record is stored with the statistics as soon as it is measured, and existing ones are
    reused. Returns the name of each plan -> its record, the original model first.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, VarianceStore(store.directories))
    plans = yield from _plans(request, model, store)
    (drawn_samples, *_) = yield from drawn_corpora(request, model, store)
    from analysis.calibration.loading import resolve_dtype
    from pruning.engine.hidden_states import NUM_TOKENS, run_variance, sample_tokens
    from pruning.engine.run import how_made
    from pruning.measures.samples import make_samples

    settings = run_settings(request, drawn_samples.sequences.longest)
    dtype = resolve_dtype(settings.dtype, model)
    changing = {"dtype": dtype, "seed": settings.seed, "tokens": NUM_TOKENS}
    record_store = VarianceStore(store.directories)
    records = {
        name: record_store.find(VarianceRecord.new(model, plan, drawn_samples.corpus, changing))
        for name, plan in plans.items()
    }
    missing = [name for name, record in records.items() if not record.is_measured]
    if not missing:
        yield Progress("cached", len(plans), len(plans), "models", "all of it is measured already")
        return records
    samples = make_samples(drawn_samples.sequences, request.batch_size)
    token_masks = sample_tokens(samples, NUM_TOKENS, settings.seed)
    num_tokens = sum(int(mask.sum()) for mask in token_masks)
    yield Progress("loading the model", 0, len(missing), "models")
    with loaded_model(model, settings) as loaded:
        for name in missing:
            started = time.monotonic()
            plan = None if name == FULL else plans[name]
            values = yield from run_variance(loaded, model.family, plan, samples, token_masks)
            run_facts = how_made(settings, time.monotonic() - started)
            records[name] = records[name].with_results(values.tolist(), num_tokens, run_facts)
            record_store.save(records[name])
    return records


def _plans(
    request: VarianceRequest, model: MoEModel, store: StatsStore
) -> Steps[dict[str, PruningPlan]]:
    plans = {FULL: keep_all(model)}
    for name, raw in zip(request.names, request.plans, strict=True):
        plans[name] = open_plan(raw, model, store)
    if request.sweep is not None:
        for plan in (yield from sweep_plans(request.sweep, model, store)):
            plans[f"{plan.provenance.criterion} {plan.provenance.sparsity}"] = plan
    if request.repair:
        plans = yield from with_named_repairs(request, model, plans)
    return plans
