"""Tasks that look into what pruning changes: hidden states, bins by saliency, answers."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pandas as pd

from analysis.choose import choose_stats, parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.ranking import rank_experts
from analysis.store import StatsStore
from app.evaluation_requests import AskRequest, BinsRequest, EvaluateRequest
from app.evaluation_tasks import draw_all, run_settings
from app.neurons import neuron_evidence
from app.quiet import quiet_transformers
from app.settings import stats_store
from app.sweeping import neuron_request, weights_measured
from pruning.evaluate.bins import Bin, bin_table, expert_bins, neuron_bins
from pruning.evaluate.result import Evaluation
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan, plan_from_dict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from analysis.calibration.loading import CalibrationSettings
    from pruning.evaluate.answers import Answer, Speaker

Table = Generator[Progress, None, pd.DataFrame]


@contextmanager
def _loaded(model: MoEModel, settings: "CalibrationSettings") -> "Iterator[PreTrainedModel]":
    from analysis.calibration.loading import load_model, offload_space

    quiet_transformers()
    with offload_space(settings.placement) as offload:
        yield load_model(model, settings, offload)


def variance_run(request: EvaluateRequest, names: tuple[str, ...]) -> Table:
    """Variance of hidden states after each layer, of the full model and of what plans leave.

    Args:
        request: its first corpus is what the models read.
        names: of the plans, for the table.
    """
    from pruning.evaluate.hidden_states import (
        NUM_TOKENS,
        draw_tokens,
        run_variance,
        variance_table,
    )
    from pruning.evaluate.samples import make_samples

    model = load_model_index(request.model, revision=request.revision)
    plans = [fit_plan(plan_from_dict(raw), model) for raw in request.plans]
    (drawn, *_) = yield from draw_all(request, model, stats_store(request.stats_dir))
    samples = make_samples(drawn.sequences, request.batch_size)
    settings = run_settings(request, drawn.sequences.longest)
    chosen = draw_tokens(samples, NUM_TOKENS, settings.seed)
    yield Progress("loading the model", 0, 1)
    with _loaded(model, settings) as loaded:
        found = {}
        pairs: list[tuple[str, PruningPlan | None]] = [("full", None)]
        for name, plan in [*pairs, *zip(names, plans, strict=True)]:
            found[name] = yield from run_variance(loaded, model.family, plan, samples, chosen)
    return variance_table(found, sum(int(mask.sum()) for mask in chosen))


def bins_run(request: BinsRequest) -> Table:
    """What removing each bin of experts or neurons adds to the loss, on the first corpus."""
    from pruning.evaluate.candidate import MeasureSettings, evaluate_candidate
    from pruning.evaluate.full_side import run_full
    from pruning.evaluate.samples import make_samples

    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    bins = yield from _bins(request, model, store)
    (drawn, *_) = yield from draw_all(request, model, store)
    samples = make_samples(drawn.sequences, request.batch_size)
    settings = run_settings(request, drawn.sequences.longest)
    measured = MeasureSettings(("nll",), settings.seed)
    yield Progress("loading the model", 0, len(bins), "bins")
    with _loaded(model, settings) as loaded:
        full = yield from run_full(loaded, samples, folder=request.hidden_states_dir)
        found: dict[int, Evaluation] = {}
        for each in bins:
            yield Progress("removing bins", len(found), len(bins), "bins")
            found[each.number] = evaluate_candidate(loaded, model.family, each.plan, full, measured)
    return bin_table(bins, found, seed=settings.seed)


def _bins(
    request: BinsRequest, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, list[Bin]]:
    if request.granularity == ATOMIC_GRANULARITY:
        scope = request.scope or "global"
        asked = neuron_request(request, request.criterion, scope, sparsity="0")
        evidence = yield from neuron_evidence(asked, model, store)
        return neuron_bins(evidence.saliency, model, bins=request.bins, scope=scope)
    criterion = get_criterion(request.criterion)
    yield from weights_measured(criterion.name, model, store)
    wanted = [parse_corpus_weight(text) for text in request.calibrated_on]
    reads_text = criterion.source == "routed"
    choice = choose_stats(criterion, store, model, wanted if reads_text else ())
    ranking = rank_experts(criterion, choice.stats, request.gate)
    return expert_bins(ranking, model, bins=request.bins, scope=request.scope or "layer")


def ask_run(request: AskRequest) -> "Generator[Progress, None, list[Answer]]":
    """Answers of the full model and of what plans leave of it."""
    from analysis.calibration.loading import CalibrationSettings, Placement, load_tokenizer
    from pruning.evaluate.answers import Question, has_chat_format, prompt_ids, run_answers

    model = load_model_index(request.model, revision=request.revision)
    plans: dict[str, PruningPlan | None] = {"full": None}
    for name, raw in zip(request.names, request.plans, strict=True):
        plans[name] = fit_plan(plan_from_dict(raw), model)
    trust = request.trust_remote_code
    tokenizer = cast("Speaker", load_tokenizer(model, trust_remote_code=trust))
    as_chat = not request.raw and has_chat_format(tokenizer)
    ids = prompt_ids(tokenizer, request.prompt, as_chat=as_chat)
    settings = CalibrationSettings(
        seq_len=len(ids) + request.max_new_tokens,
        dtype=request.dtype,
        device=request.device,
        batch_size=1,
        trust_remote_code=trust,
        placement=Placement(
            device_map=request.device_map or "", offload_folder=request.offload_folder
        ),
    )
    question = Question(ids, tokenizer, request.max_new_tokens)
    yield Progress("loading the model", 0, len(plans), "models")
    with _loaded(model, settings) as loaded:
        return (yield from run_answers(loaded, model.family, plans, question))
