"""Tasks that look into what pruning changes: hidden states, answers."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pandas as pd

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from app.evaluation_requests import AskRequest, EvaluateRequest
from app.evaluation_tasks import draw_all, run_settings
from app.quiet import quiet_transformers
from app.settings import stats_store
from pruning.plan import PruningPlan, fit_plan, plan_from_dict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from analysis.calibration.loading import CalibrationSettings
    from pruning.evaluate.answers import Answer, Speaker

Table = Generator[Progress, None, pd.DataFrame]


@contextmanager
def loaded_model(model: MoEModel, settings: "CalibrationSettings") -> "Iterator[PreTrainedModel]":
    """The model with its weights, for as long as the context lasts."""
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
    with loaded_model(model, settings) as loaded:
        found = {}
        pairs: list[tuple[str, PruningPlan | None]] = [("full", None)]
        for name, plan in [*pairs, *zip(names, plans, strict=True)]:
            found[name] = yield from run_variance(loaded, model.family, plan, samples, chosen)
    return variance_table(found, sum(int(mask.sum()) for mask in chosen))


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
    with loaded_model(model, settings) as loaded:
        return (yield from run_answers(loaded, model.family, plans, question))
