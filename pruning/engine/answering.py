"""Answers that models write to the questions of an evaluation, greedily and in batches."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes
from analysis.families.base import MoEFamily
from analysis.families.packing import state_kinds
from analysis.model.generation import end_tokens, greedy_answers
from analysis.progress import Progress
from pruning.engine.candidate import candidate_of
from pruning.engine.changed_weights import ChangedWeights
from pruning.measures.questions import Questions
from pruning.measures.right_answers import MarkedAnswers
from pruning.measures.samples import gather_rows
from pruning.plan.plan import PruningPlan

ANSWERING: Final = "writing answers"  # phase
ORIGINAL: Final = "original model"  # where in it


@dataclass(frozen=True, eq=False)
class Examination:
    """A loaded model, and the questions that it and plans of it answer."""

    model: PreTrainedModel  # whole
    family: MoEFamily
    questions: Questions
    batch_size: int = 8  # questions answered at once
    processes: Processes = field(default_factory=Processes)

    def batches(self) -> Iterator[list[int]]:
        """Numbers of the questions, the shortest prompts first, so that little is padded.

        Prompts of models with layers that carry a state are never padded: it would read padding.
        """
        prompts = self.questions.prompts
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        kinds = getattr(self.model.config.get_text_config(), "layer_types", None) or ()
        groups = [order]
        if state_kinds(kinds):
            equal = groupby(order, key=lambda number: len(prompts[number]))
            groups = [list(numbers) for _, numbers in equal]
        for group in groups:
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def answers(self, numbers: Sequence[int]) -> list[list[int]]:
        """New tokens of the answers to some questions, as the model computes now."""
        questions, settings = self.questions, self.questions.settings
        prompts = [questions.prompts[number] for number in numbers]
        is_complete = questions.is_complete if settings.stops else None
        return greedy_answers(self.model, prompts, settings.answer_tokens, is_complete)

    def is_finished(self, ids: list[int]) -> bool:
        """Whether an answer ended by itself, and not at the most tokens of an answer."""
        if len(ids) < self.questions.settings.answer_tokens or ids[-1] in end_tokens(self.model):
            return True
        return self.questions.is_complete(ids)


def run_answers_to(
    exam: Examination, plan: PruningPlan | None
) -> Generator[Progress, None, MarkedAnswers]:
    """Let a candidate answer every question, and mark the answers; None is the original model.

    Processes take batches in turn, and all return the same. Masks are removed afterwards.
    """
    questions, processes = exam.questions, exam.processes
    # Made once, though each batch is masked anew.
    changed = ChangedWeights()
    numbers: list[int] = []
    right: list[float] = []
    finished: list[float] = []
    with processes.together():
        own = list(exam.batches())[processes.rank :: processes.world]
        total = sum(map(len, own))
        at = "" if plan else ORIGINAL
        for batch in own:
            yield Progress(ANSWERING, len(numbers), total, "questions", at=at)
            with candidate_of(exam.model, exam.family, plan, changed):
                answers = exam.answers(batch)
            numbers += batch
            right += [questions.is_right(*pair) for pair in zip(batch, answers, strict=True)]
            finished += map(exam.is_finished, answers)
        yield Progress(ANSWERING, total, total, "questions", at=at)
    values = {"right": np.array(right, float), "finished": np.array(finished, float)}
    marks = gather_rows(processes, np.array(numbers, np.int64), values, len(questions))
    return MarkedAnswers(
        tuple(1 if is_right else 0 for is_right in marks["right"]),
        len(questions) - int(marks["finished"].sum()),
    )
