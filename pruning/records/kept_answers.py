"""Records of the answers of the original and of a pruned model to one prompt. No torch."""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from analysis.model.moe_model import MoEModel
from pruning.measures.store import Count, RecordPart, RecordStore, RunFacts
from pruning.plan.plan import PruningPlan
from pruning.records.plan_facts import RecordOfPlan, plan_facts


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one model."""

    text: str  # without special tokens
    ids: tuple[int, ...]  # generated tokens
    agreed: int  # leading tokens that equal those of the first model
    seconds: float


class KeptAnswer(RecordPart):
    """The answer of one model."""

    text: str
    num_tokens: Count
    agreed: Count  # leading tokens that equal those of the original model
    seconds: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.agreed > self.num_tokens:
            raise ValueError(f"{self.agreed} of {self.num_tokens} tokens cannot agree")
        return self


class AnswerRecord(RecordOfPlan):
    """The answers of the original and of the pruned model to one prompt.

    Its settings are `dtype`, `max_new_tokens` and `raw`, and `template_args` if there were any.
    """

    folder = "answers"
    word = "pair of answers"
    command = "ask"
    measured = "answers"

    record_id: str = Field(alias="answers_id")
    prompt: str
    answers: tuple[KeptAnswer, ...] = ()  # of the original model, then of the pruned one
    settings: RunFacts

    @classmethod
    def of(
        cls,
        model: MoEModel,
        plan: PruningPlan,
        question: tuple[str, dict[str, object]],
        pair: tuple[Answer, Answer],
    ) -> Self:
        """The record of a pair of answers; `question` is the prompt and the settings."""
        facts = plan_facts(plan, model)
        fields = dict(zip(("prompt", "settings"), question, strict=True))
        words = (facts.criterion or "plan", "answers")
        begun = cls.begun_with(model, plan.digest, words, fields, plan=facts, **fields)
        kept = tuple(
            KeptAnswer(text=a.text, num_tokens=len(a.ids), agreed=a.agreed, seconds=a.seconds)
            for a in pair
        )
        return begun.finished({}, answers=kept)


class AnswerStore(RecordStore[AnswerRecord]):
    """Pairs of answers of one or more statistics directories; new ones go to the first."""

    kind = AnswerRecord
