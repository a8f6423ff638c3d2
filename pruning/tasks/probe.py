"""The task of answers: the full model and what plans leave of it, on one prompt."""

from typing import TYPE_CHECKING, cast

from analysis.model import load_model_index
from analysis.progress import Progress
from pruning.plan import PruningPlan, fit_plan, plan_from_dict
from pruning.requests.evaluation import AskRequest
from pruning.tasks import JobResult, Steps
from pruning.tasks.loading import loaded_model

if TYPE_CHECKING:
    from pruning.evaluate.answers import Answer, Speaker


def ask_task(request: AskRequest) -> Steps[JobResult]:
    """Job form of `ask_run`; each answer as JSON, its tokens as their number."""
    answers = yield from ask_run(request)
    return {
        "answers": [
            {
                "name": answer.name,
                "text": answer.text,
                "num_tokens": len(answer.ids),
                "agreed": answer.agreed,
                "seconds": answer.seconds,
            }
            for answer in answers
        ]
    }


def ask_run(request: AskRequest) -> "Steps[list[Answer]]":
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
