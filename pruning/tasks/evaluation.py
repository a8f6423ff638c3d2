"""Tasks of evaluation: plans on held-out corpora, and criteria against sparsities."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from analysis.corpora.early import (
    check_context,
    check_quantisation,
    check_reaches,
    check_streamable,
    context_of,
    shorter_note,
    within_context,
)
from analysis.corpora.encoding import check_token_ids
from analysis.corpora.spec import corpus_name, parse_corpus
from analysis.model.layer_costs import layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Costs, Parts, Progress, changed
from analysis.stats.store import StatsStore, stats_store
from pruning.measures.drawing import Reading, draw
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.result import RIGHT
from pruning.measures.sample_settings import DEFAULT_SEED
from pruning.plan.bits import OWN
from pruning.plan.expert_sizes import check_fewer
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, with_top_k
from pruning.plan.routing import measured_routing
from pruning.planning.make import make_plan
from pruning.records.evaluation import EvaluationRecord, EvaluationStore
from pruning.records.repair import RepairStore
from pruning.requests.evaluation import (
    EvaluateRequest,
    HeldOutRequest,
    MeasureRequest,
    SweepRequest,
)
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.apart import open_checked, say_skipped
from pruning.tasks.loading import (
    check_records_folder,
    open_plan,
    quiet_transformers,
    run_settings,
    together,
    tokenizer_loader,
)
from pruning.tasks.repair import repair_parts, with_repairs


def sweep_plans(
    request: SweepRequest, model: MoEModel, store: StatsStore
) -> Steps[list[PruningPlan]]:
    """The plans of a sweep, by criterion and then by budget."""
    study, plans = Study.of(request, model, store), []
    for criterion in request.criteria:
        specs = request.specs(criterion)
        ranking = yield from study.rank(specs[0])
        plans += [make_plan(ranking, spec) for spec in specs]
    return [fit_plan(plan, model) for plan in plans]


def check_drawn(model: MoEModel, drawn: DrawnSamples) -> None:
    """Refuse samples beyond the model's context, and ids beyond its vocabulary."""
    sequences = drawn.sequences
    check_context(model, sequences)
    check_token_ids(sequences.corpus, max(int(row.max()) for row in sequences.rows), model)


def say_drawn(drawn: DrawnSamples) -> Steps[None]:
    """Say which samples are missing, and how many rows were left out."""
    shortfalls = (drawn.shortfall, drawn.questions.shortfall if drawn.questions else "")
    for note in filter(None, shortfalls):
        yield Progress("reading the corpus", 0, 0, note=note)
    yield from say_skipped(drawn.sequences)


Records = Steps[list[EvaluationRecord]]


def evaluate_run(request: EvaluateRequest) -> Records:
    """Evaluate the plans on each corpus and store results next to the statistics."""
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    plans = [open_plan(raw, model, store) for raw in request.plans] or [keep_all(model)]
    return (yield from evaluate_plans(request, model, plans))


def evaluate_plans(
    request: EvaluateRequest | SweepRequest, model: MoEModel, plans: Iterable[PruningPlan]
) -> Records:
    """Evaluate these plans as a request says; records by corpus and then by plan.

    With repairs each plan is followed by itself repaired, and each of these comes in all bits.
    """
    plans = [with_top_k(plan, model, request.top_k) for plan in plans]
    if not request.repair:
        return (yield from _evaluate(request, model, in_bits(plans, model, request.bits)))
    # Refused before hours of repair. Drawn again after it, without what it read.
    draws = yield from changed(_drawn(request, model), partial(replace, note=""))
    with together():
        parts = _parts(request, model, plans, draws)
    plans = yield from with_repairs(request, model, plans, parts)
    evaluating = _evaluate(request, model, in_bits(plans, model, request.bits))
    return (yield from parts.run("evaluate", evaluating))


def _parts(
    request: EvaluateRequest | SweepRequest,
    model: MoEModel,
    plans: Sequence[PruningPlan],
    draws: Sequence[DrawnSamples],
) -> Parts:
    """What repairs of these plans, and an evaluation of them as they are and repaired, cost.

    The evaluation on samples like these.
    """
    from analysis.calibration.distributed import join
    from pruning.engine.evaluation_parts import EvaluationParts, Missing
    from pruning.measures.samples import make_samples

    repairs, streams = repair_parts(model, plans), request.stream_layers
    candidates = (len(plans) + len(repairs)) * len(request.bits)
    measures = tuple(name for name in request.measures if name != RIGHT)
    lacks = [Missing((*measures, *([RIGHT] * bool(draw.questions))), True) for draw in draws]
    missing = [[one] * candidates for one in lacks]
    sharing = join() if streams else None
    samples = [make_samples(draw.sequences, request.batch_size, sharing) for draw in draws]
    evaluating = EvaluationParts.of(model, draws, samples, missing, stream_layers=streams)
    return Parts(repairs | {"evaluate": evaluating.whole.whole.total})


def expected_tokens(request: HeldOutRequest, model: MoEModel) -> int:
    """The tokens of all corpora, if each has as many samples as are asked for, of full length."""
    tokens = 0
    for corpus in request.corpora:
        usual = request.sample_settings(corpus)
        tokens += usual.samples * within_context(model, usual.seq_len, request.seq_len)
    return tokens


def evaluation_costs(model: MoEModel, tokens: int, candidates: int) -> Costs:
    """What an evaluation of the original and so many candidates costs on so many tokens."""
    costs = layer_costs(model)
    return {
        "read": costs.reading(*costs.num_bytes),
        "multiply": (1 + candidates) * costs.running(tokens, *range(model.depth)),
        "compare": candidates * logits_cost(model, tokens),  # each with the original
    }


def in_bits(
    plans: Iterable[PruningPlan], model: MoEModel, bits: Sequence[str]
) -> list[PruningPlan]:
    """Each plan in each of these bits, see `plan.bits`; one that has its own stays alone."""
    for name in bits:
        check_fewer(model, name)
    candidates: list[PruningPlan] = []
    for plan in plans:
        complete = fit_plan(plan, model)
        if complete.named_bits:
            candidates.append(complete)
            continue
        candidates += [replace(complete, bits="" if name == OWN else name) for name in bits]
    return candidates


def _evaluate(request: MeasureRequest, model: MoEModel, plans: Sequence[PruningPlan]) -> Records:
    """Records by corpus and then by plan."""
    store, draws = stats_store(request.stats_dir), (yield from _drawn(request, model))
    from pruning.engine.run import Evaluations, run_evaluations

    quiet_transformers()
    work = Evaluations(
        model,
        plans,
        draws,
        request.measures,
        run_settings(request, max(draw.sequences.longest for draw in draws)),
        EvaluationStore(store.directories),
        measured_routing(plans, store),
    )
    return (yield from run_evaluations(work))


def _drawn(request: MeasureRequest, model: MoEModel) -> Steps[list[DrawnSamples]]:
    """The samples of every corpus, where their records can be kept."""
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, EvaluationStore(store.directories), model.identity)
    if request.stream_layers and any(
        parse_corpus(corpus).names_check for corpus in request.corpora
    ):
        note = "answers are not checked: with --stream-layers a model takes too long to write"
        yield Progress("reading the corpora", 0, 0, note=note)
    with together():
        return (yield from drawn_corpora(request, model, store))


def drawn_corpora(
    request: HeldOutRequest, model: MoEModel, store: StatsStore
) -> Steps[list[DrawnSamples]]:
    """The samples of every corpus of a request; all are opened before torch is imported."""
    check_quantisation(model)
    if getattr(request, "stream_layers", False):
        check_streamable(model)
    tokenizer = tokenizer_loader(model, trusted=request.trust_remote_code)
    runs: list[Reading] = [run.manifest for run in store.of_model(model.identity, "routed")]
    runs += RepairStore(store.directories).records(model.identity)
    allowed, skips = request.allow_test_set, request.skip_bad_rows
    sources = {
        corpus: open_checked(corpus, store, allowed=allowed, skips=skips)
        for corpus in request.corpora
    }
    settings = {}
    for corpus, source in sources.items():
        usual = request.sample_settings(corpus)
        seq_len = within_context(model, usual.seq_len, request.seq_len)
        asked = usual.questions and replace(usual.questions, context=context_of(model))
        settings[corpus] = replace(usual, seq_len=seq_len, questions=asked)
        seed = DEFAULT_SEED if usual.seed is None else usual.seed
        check_reaches(source, corpus, seq_len, seed, model.checkpoint.path)
    draws = []
    for corpus, source in sources.items():
        yield Progress("reading", 0, 0, at=corpus_name(corpus))  # no share of the whole
        draws.append(draw(corpus, source, runs, settings[corpus], tokenizer))
        check_drawn(model, draws[-1])
    for corpus, samples in zip(sources, draws, strict=True):
        usual_length = request.sample_settings(corpus).seq_len
        if note := shorter_note(model, settings[corpus].seq_len, usual_length):
            yield Progress("reading the corpora", 0, 0, note=note)
        yield from say_drawn(samples)
    return draws
