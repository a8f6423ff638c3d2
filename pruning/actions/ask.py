"""Answers of the original model and of plans to a prompt, and the losses of a text under each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, model_validator

from analysis.corpora.early import check_positions
from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import LOADING, Costs, Parts, Progress, cost
from analysis.stats.store import StatsStore, stats_store
from pruning.actions.action import Action, Call, Outcome, Texts
from pruning.actions.candidates import candidate_names, plans_by_file, plans_by_name
from pruning.option import Option
from pruning.plan.plan import PruningPlan
from pruning.records.kept_answers import AnswerRecord, AnswerStore
from pruning.records.lens import LensQuestion, LensRecord, LensStore, check_text_length, in_short
from pruning.records.plan_facts import plan_facts
from pruning.requests.following import evaluate_command
from pruning.requests.model import ModelRequest
from pruning.spec import options
from pruning.tasks import Steps
from pruning.tasks.loading import check_records_folder, loaded_model, open_plan, run_settings
from pruning.tasks.repair import with_repairs

if TYPE_CHECKING:
    from analysis.corpora.tokens import Tokenizer
    from pruning.records.kept_answers import Answer

_Words = Annotated[str, Field(min_length=1, max_length=1 << 20)]


class AskRequest(ModelRequest):
    """A prompt, or a text to score, for the original model and for plans."""

    asked_by = "ask"
    prompt: Annotated[_Words | None, Option("Prompt for every model.")] = None
    text: Annotated[
        _Words | None,
        Option("Instead of a prompt: a text whose tokens are scored under every plan (the lens)."),
    ] = None
    lens: Annotated[
        options.Switch,
        Option("Also score the original model's answer token by token under every plan."),
    ] = False
    plans: tuple[Annotated[options.Plan, Option("plan.json to compare; repeatable.")], ...] = ()
    repair: options.Repair = False
    max_new_tokens: Annotated[
        int,
        Field(strict=True, ge=1, le=1 << 16),
        Option("Tokens of an answer, at most.", takes="TOKENS"),
    ] = 128
    raw: Annotated[options.Switch, Option("Continue the prompt as it stands, not as a chat.")] = (
        False
    )
    template_args: options.TemplateArgs = Field(default_factory=dict)
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    device_map: options.DeviceMap | None = None
    offload_folder: options.OffloadFolder | None = None
    trust_remote_code: options.Trust = False
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "AskRequest":
        if (self.prompt is None) == (self.text is None):
            raise ValueError("give --prompt or --text, one of them")
        if self.lens and self.prompt is None:
            raise ValueError("--lens is of the answer to a --prompt; --text is scored anyway")
        if self.template_args and (self.raw or self.prompt is None):
            raise ValueError("--template-arg is of a --prompt in the chat format, without --raw")
        if self.offload_folder and not self.device_map:
            raise ValueError("--offload-folder needs --device-map auto")
        return self


@dataclass(frozen=True, slots=True)
class AskResult:
    """What came of a request to ask: answers to a prompt, a lens, or both."""

    answers: "Sequence[Answer]"  # of the original model, then under each plan
    lens: LensRecord | None
    plans: Sequence[PruningPlan]  # those of the request, each followed by itself repaired


def _run(request: AskRequest) -> Steps[AskResult]:
    """Answers of the original model and of plans, or the lens of a text; both are recorded."""
    model = load_model_index(request.model, revision=request.revision)
    stats = stats_store(request.stats_dir)
    store = LensStore(stats.directories)
    for records in (AnswerStore(stats.directories), store):
        check_records_folder(request.stats_dir, records, model.identity)
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
        return AskResult((), record, pruned)
    answers: list[Answer] = []
    whole = Parts(_parts(request, model, len(ids), 1 + len(pruned)))
    yield Progress(LOADING, 0, 1 + len(pruned), "models", whole=whole.whole)
    with loaded_model(model, settings) as running:
        whole.finish(LOADING)
        if request.prompt:
            question = Question(ids, tokenizer, request.max_new_tokens)
            answering = run_answers(running, model.family, [None, *pruned], question)
            answers = yield from whole.by_phase(answering)
            _save_answers(request, model, pruned, facts, answers)
        if not (request.text or request.lens):
            return AskResult(answers, None, pruned)
        start = len(ids) if request.prompt else 1
        looking = work.run(running, [*ids, *(answers[0].ids if answers else ())], start)
        lens = yield from whole.by_phase(looking)
    return AskResult(answers, lens, pruned)


def _parts(request: AskRequest, model: MoEModel, tokens: int, models: int) -> dict[str, Costs]:
    """What loading costs, and the phases of so many models on so many tokens; answers may end."""
    from pruning.engine.answers import ANSWERING
    from pruning.engine.lens_run import LOOKING

    costs, new = layer_costs(model), request.max_new_tokens if request.prompt else 0
    active = models * sum(costs.active.values())
    reading = cost("multiply", tokens * active)
    parts: dict[str, Costs] = {LOADING: {"read": costs.reading(*costs.num_bytes)}}
    if request.prompt:
        parts[ANSWERING] = {"multiply": reading, "answer": cost("answer", new * active)}
    if request.text or request.lens:
        parts[LOOKING] = {"multiply": reading + cost("multiply", new * active)}
    return parts


def _asked_plans(
    request: AskRequest, model: MoEModel, store: StatsStore
) -> Steps[list[PruningPlan]]:
    """The plans, and themselves repaired where that is asked for."""
    plans = [open_plan(raw, model, store) for raw in request.plans]
    return (yield from with_repairs(request, model, plans)) if request.repair else plans


def _save_answers(
    request: AskRequest,
    model: MoEModel,
    plans: Sequence[PruningPlan],
    facts: dict[str, object],
    answers: "Sequence[Answer]",
) -> None:
    """Store the pair of answers of each plan."""
    store = AnswerStore(stats_store(request.stats_dir).directories)
    original, *others = answers
    for plan, answer in zip(plans, others, strict=True):
        question = str(request.prompt), facts
        store.save(AnswerRecord.of(model, plan, question, (original, answer)))


@dataclass(frozen=True, slots=True)
class _Lenses:
    """Lenses of a model under some plans."""

    model: MoEModel
    plans: Sequence[PruningPlan]
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
        done = {plan.plan_digest for plan in record.plans}
        return record.is_measured and all(plan.digest in done for plan in self.plans)

    def run(self, running: Any, ids: Sequence[int], start: int) -> Steps[LensRecord]:
        """Run what the record of these tokens lacks, and store it."""
        from pruning.engine.lens_run import run_lens

        record = yield from run_lens(running, self.model, self.plans, self.record(ids, start))
        self.store.save(record)
        return record


def _tell(call: Call[AskRequest], result: AskResult) -> Outcome:
    """The answers side by side, and how near those of plans are to the original's."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    plans = plans_by_file(call, request.plans, model)
    facts = [plan_facts(plan, model) for plan in result.plans]
    names = [*candidate_names(plans_by_name(plans), facts, model, repair=request.repair)]
    lines, values, texts = [], dict[str, object](), dict[str, str]()
    if result.answers:
        original, *others = result.answers
        written = [answer.text.strip() or "(nothing)" for answer in result.answers]
        texts = dict(zip(["original", *names], written, strict=True))
        lines = [
            f"{name}: the first {answer.agreed} of {len(answer.ids)} tokens as the original model, "
            f"{answer.seconds:.1f} s"
            for name, answer in zip(names, others, strict=True)
        ] or [f"{len(original.ids)} tokens, {original.seconds:.1f} s"]
        values["answers"] = [
            {"name": name, **asdict(answer)}
            for name, answer in zip(["full", *names], result.answers, strict=True)
        ]
    if (lens := result.lens) is not None:
        lines.append(f"lens {lens.record_id}: {len(lens.losses)} tokens scored")
        lines += [
            f"{name}: {in_short(lens, measured)}"
            for name, plan in zip(names, result.plans, strict=True)
            if (measured := lens.of_plan(plan.digest))
        ]
        values["lens"] = lens.to_dict()
    following = evaluate_command(request, model, plans)
    return Outcome("\n".join(lines), {}, (Texts(texts, values),), (following,))


ACTION: Final = Action(
    AskRequest,
    _run,
    _tell,
    "ask demo --plan plan.json --prompt 'A room is 7 m by 6 m. How large is it?'",
    "{about}",
    "evaluate.ask",
)
