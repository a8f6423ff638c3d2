"""Answers of the original model and of candidates to one prompt, side by side."""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from transformers import PreTrainedModel

from analysis.corpora.encoding import TextReader
from analysis.corpora.prompts import conversation_prompt
from analysis.corpora.tokens import Tokenizer
from analysis.errors import CorpusError
from analysis.families.base import MoEFamily
from analysis.model.generation import greedy_answers
from analysis.progress import Progress
from pruning.engine.candidate import candidate_of
from pruning.plan.plan import PruningPlan
from pruning.records.kept_answers import Answer

ANSWERING: Final = "answering"  # phase


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt for models to continue."""

    ids: Sequence[int]  # tokens of the prompt
    tokenizer: Tokenizer
    max_new_tokens: int = 128


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str,
    *,
    as_chat: bool,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> list[int]:
    """Token ids of a prompt, as a user's turn in the chat template or as it is.

    `arguments` are of the template.
    """
    if arguments and not as_chat:
        raise CorpusError(
            "The model's tokenizer has no chat template, so ask without --template-arg."
        )
    damaged = "its files are damaged, fetch them again"
    reader = TextReader(tokenizer, "The prompt", damaged, "ask with --raw", arguments)
    if as_chat:
        ids = conversation_prompt(({"role": "user", "content": prompt},), (), reader)
    else:
        ids = list(reader.tokenize(prompt, add_special_tokens=True).ids)
    if not ids:
        raise CorpusError("The prompt is empty; write what the model should answer.")
    return ids


def has_chat_format(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer has a chat template."""
    try:
        return bool(tokenizer.get_chat_template())
    except (ValueError, NotImplementedError):  # mistral-common's formats by its own code
        return False


def run_answers(
    model: PreTrainedModel,
    family: MoEFamily,
    plans: Sequence[PruningPlan | None],
    question: Question,
) -> Generator[Progress, None, list[Answer]]:
    """Let each model continue the prompt greedily.

    Of `plans`, None is the model as it is. Masks are removed afterwards.
    """
    answers: list[Answer] = []
    for plan in plans:
        yield Progress(ANSWERING, len(answers), len(plans), "models")
        started = time.monotonic()
        with candidate_of(model, family, plan):
            (ids,) = greedy_answers(model, [question.ids], question.max_new_tokens)
        text = question.tokenizer.decode(ids, skip_special_tokens=True)
        first = answers[0].ids if answers else tuple(ids)
        pairs = zip(first, ids, strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        seconds = time.monotonic() - started
        answers.append(Answer(text, tuple(ids), agreed, seconds))
    yield Progress(ANSWERING, len(plans), len(plans), "models")
    return answers
