"""Records of answers: what the original model and one plan say to a prompt, kept as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from analysis.model import MoEModel
from pruning.evaluate.record import RecordOfPlan, plan_facts
from pruning.evaluate.store import Count, RecordPart, RecordStore, RunFacts
from pruning.plan import PruningPlan

if TYPE_CHECKING:
    from pruning.evaluate.answers import Answer


class KeptAnswer(RecordPart):
    """What one model says."""

    text: str
    num_tokens: Count
    agreed: Count  # tokens at the beginning that are those of the original model
    seconds: Annotated[float, Field(ge=0)]


class AnswerRecord(RecordOfPlan):
    """The answers of the original model and of what a plan leaves of it, to one prompt.

    Its settings are `dtype`, `max_new_tokens` and `raw`.
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
        asked: tuple[str, dict[str, object]],
        pair: tuple[Answer, Answer],
    ) -> Self:
        """The record of a pair; `asked` are the prompt and the settings."""
        prompt, settings = asked
        facts = plan_facts(plan, model)
        begun = cls.begun_with(
            (model, plan, facts),
            (facts.criterion or "plan", "answers"),
            {"prompt": prompt, "settings": settings},
            prompt=prompt,
            settings=settings,
        )
        kept = tuple(
            KeptAnswer(text=a.text, num_tokens=len(a.ids), agreed=a.agreed, seconds=a.seconds)
            for a in pair
        )
        return begun.finished({}, answers=kept)


class AnswerStore(RecordStore[AnswerRecord]):
    """Pairs of answers of one or more statistics directories; new ones go to the first."""

    kind = AnswerRecord
