"""How an evaluation is sampled and what is asked: the choices, and words for what they draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from analysis.corpora.checks import Check


DEFAULT_SAMPLES = 64
DEFAULT_SEED = 42
DEFAULT_QUESTIONS = 64
DEFAULT_ANSWER_TOKENS = 256
_WINDOWS = 2  # of a document of running text
Scored = Literal["auto", "all", "response"]
SCORED: tuple[Scored, ...] = get_args(Scored)
HELD_OUT = "a part that is held out from training and calibration"
UNREAD = "no known calibration used this corpus"
BEYOND = "documents that follow those which calibration read"
UNSURE = "calibration may have read some of these documents"


@dataclass(frozen=True, slots=True)
class QuestionSettings:
    """How many documents are asked, and how answers end and are checked."""

    check: Check
    questions: int = DEFAULT_QUESTIONS  # documents, at most
    answer_tokens: int = DEFAULT_ANSWER_TOKENS  # of an answer, at most
    stops: tuple[str, ...] = ()  # texts at which an answer ends, besides the model's own end
    context: int | None = None  # tokens of a prompt and its answer, at most; None: no limit known


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How much of a corpus to evaluate on."""

    samples: int = DEFAULT_SAMPLES  # documents with an answer each, or sequences of running text
    seq_len: int = 256  # tokens of a sample, at most
    seed: int | None = None  # of the order of documents; None: that of calibration, else 42
    # "response" predicts answers only, "all" every token, "auto" answers if the corpus has them.
    scored: Scored = "auto"
    # Arguments of the chat template, for conversations.
    template_args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # Samples of running text that a document gives at most; 0: all, None: two.
    windows_per_document: int | None = None
    questions: QuestionSettings | None = None  # what is asked and checked besides; None: nothing

    @property
    def windows(self) -> int | None:
        """The limit; None if there is none."""
        if self.windows_per_document is None:
            return _WINDOWS
        return self.windows_per_document or None
