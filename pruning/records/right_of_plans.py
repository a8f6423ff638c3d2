"""Right answers of plans over corpora, beside the original model's and Random's. No torch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pruning.measures.result import Difference, Metric, SampleValues, paired_difference
from pruning.measures.right_answers import RightAnswers, share_words
from pruning.records.quality import PlanLoss, losses_at

Asked = Mapping[str, str]  # corpus -> digest of its questions


@dataclass(frozen=True, slots=True)
class RightRow:
    """Right answers on one corpus, as shares of its questions."""

    corpus: str
    questions: int
    plan: Metric
    full: Metric  # of the original model
    random: float | None  # mean over draws of Random at the plan's sparsity; None if not measured
    draws: int  # of Random

    @property
    def words(self) -> str:
        """In one line, for people."""
        text = f"{share_words(self.plan)} of {self.questions} questions, original "
        text += share_words(self.full)
        if self.random is None:
            return text
        draws = f"{self.draws} draws" if self.draws > 1 else "1 draw"
        return f"{text}, Random {self.random:.0%} ({draws})"


def usual_questions(losses: Iterable[PlanLoss]) -> Asked:
    """The questions of each corpus that most plans were asked."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for loss in losses:
        for corpus, answers in loss.right.items():
            counts[corpus][answers.digest] += 1
    # Of equally many the same at every call.
    return {
        corpus: max(sorted(found), key=found.__getitem__)
        for corpus, found in sorted(counts.items())
    }


def answers_to(loss: PlanLoss, asked: Asked) -> dict[str, RightAnswers]:
    """Corpus -> the plan's answers, where it was asked these questions."""
    right = loss.right
    return {
        name: right[name] for name in asked if name in right and right[name].digest == asked[name]
    }


def right_shares(losses: Sequence[PlanLoss], asked: Asked) -> dict[str, float]:
    """Corpus -> share of right answers, mean over the plans; only where all were asked."""
    found = [answers_to(loss, asked) for loss in losses]
    return {
        name: fmean(answers[name].share for answers in found)
        for name in asked
        if found and all(name in answers for answers in found)
    }


def original_shares(losses: Iterable[PlanLoss], asked: Asked) -> dict[str, float]:
    """Corpus -> share of right answers of the original model."""
    answers = [answers_to(loss, asked) for loss in losses]
    known = ((name, answer) for found in answers for name, answer in found.items())
    return {name: answer.full_share for name, answer in known}


def random_draws(
    losses: Iterable[PlanLoss], share: float | None, granularity: str
) -> list[PlanLoss]:
    """The draws of Random that remove this share, as most plans were measured, without a repair."""
    draws = [
        loss
        for loss in (losses_at(losses, share) if share else ())
        if loss.is_random
        and not (loss.is_repaired or loss.way)
        and loss.facts.granularity == granularity
    ]
    return list({draw.plan: draw for draw in draws}.values())


def right_rows(loss: PlanLoss, losses: Sequence[PlanLoss]) -> tuple[RightRow, ...]:
    """A row for each corpus on which a plan was asked; `losses` are those of all plans."""
    rows = []
    facts = loss.facts
    draws = [] if loss.is_random else random_draws(losses, facts.removed, facts.granularity)
    for name, answers in sorted(loss.right.items()):
        same = [draw for draw in draws if answers_to(draw, {name: answers.digest})]
        random = right_shares(same, {name: answers.digest}).get(name)
        count = len(answers.right)
        row = RightRow(name, count, answers.metric, answers.full_metric, random, len(same))
        rows.append(row)
    return tuple(rows)


def right_share(loss: PlanLoss) -> float:
    """Share of right answers of a plan that was asked, mean over its corpora."""
    return fmean(answers.share for answers in loss.right.values())


def in_short(loss: PlanLoss) -> str:
    """Right answers of a plan in a few words, mean over its corpora; empty if none were checked."""
    if not loss.right:
        return ""
    full = fmean(answers.full_share for answers in loss.right.values())
    return f"right answers {right_share(loss):.0%}, original {full:.0%}"


def right_apart(one: PlanLoss, other: PlanLoss) -> Difference | None:
    """Share of right answers of `one` minus that of `other`, mean over corpora.

    None if they were not asked the same questions.
    """
    asked = {name: answers.digest for name, answers in one.right.items()}
    answers = answers_to(other, asked)
    if not asked or len(answers) < len(asked):
        return None
    pairs = [(one.right[name].right, answers[name].right) for name in asked]
    return paired_difference([SampleValues(np.subtract(*pair, dtype=float)) for pair in pairs])
