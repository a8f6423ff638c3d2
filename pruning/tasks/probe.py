"""The task of answers: the full model and what plans leave of it, on one prompt."""

from typing import TYPE_CHECKING, cast

from analysis.model import load_model_index
from analysis.progress import Progress
from pruning.plan import PruningPlan, fit_plan, plan_from_dict
from pruning.requests.evaluation import AskRequest
from pruning.tasks import Steps
from pruning.tasks.loading import loaded_model, run_settings

if TYPE_CHECKING:
    from pruning.evaluate.answers import Answer, Speaker


def ask_run(request: AskRequest) -> "Steps[list[Answer]]":
    """Answers of the full model and of what plans leave of it."""
    from analysis.calibration.loading import load_tokenizer
    from pruning.evaluate.answers import Question, has_chat_format, prompt_ids, run_answers

    model = load_model_index(request.model, revision=request.revision)
    plans: dict[str, PruningPlan | None] = {"full": None}
    for name, raw in zip(request.names, request.plans, strict=True):
        plans[name] = fit_plan(plan_from_dict(raw), model)
    loaded = load_tokenizer(model, trust_remote_code=request.trust_remote_code)
    tokenizer = cast("Speaker", loaded)
    as_chat = not request.raw and has_chat_format(tokenizer)
    ids = prompt_ids(tokenizer, request.prompt, as_chat=as_chat)
    settings = run_settings(request, len(ids) + request.max_new_tokens, batch_size=1)
    question = Question(ids, tokenizer, request.max_new_tokens)
    yield Progress("loading the model", 0, len(plans), "models")
    with loaded_model(model, settings) as running:
        return (yield from run_answers(running, model.family, plans, question))
