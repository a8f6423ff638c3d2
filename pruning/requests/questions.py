"""What is asked of corpora with a check, by `evaluate`, `sweep` and the recipe's `evaluate`."""

from typing import Annotated

from analysis.corpora.checks import CHECKS
from analysis.corpora.spec import parse_corpus
from pruning.measures.sample_settings import (
    DEFAULT_ANSWER_TOKENS,
    DEFAULT_QUESTIONS,
    QuestionSettings,
)
from pruning.option import Option
from pruning.requests.model import ActionOptions
from pruning.spec import options


class QuestionOptions(ActionOptions):
    """How many documents of a corpus with a check are asked, and how answers end."""

    questions: options.Questions = DEFAULT_QUESTIONS
    answer_tokens: Annotated[
        options.AnswerTokens | None,
        Option(
            "Tokens of an answer that is checked, at most; "
            f"default: {DEFAULT_ANSWER_TOKENS}, fewer for the demo."
        ),
    ] = None
    stops: options.Stops = ()

    def question_settings(self, corpus: str, *, asked: bool) -> QuestionSettings | None:
        """What is asked of a corpus; None if nothing is.

        Corpora are asked that were given a check, and if `asked` for also those that have one.
        """
        spec = parse_corpus(corpus)
        if not self.questions or not spec.check or not (asked or spec.names_check):
            return None
        stops = tuple(stop.replace("\\n", "\n") for stop in self.stops)
        stops = stops or tuple(filter(None, [spec.stop]))
        tokens = self.answer_tokens or spec.answer_tokens or DEFAULT_ANSWER_TOKENS
        return QuestionSettings(CHECKS[spec.check], self.questions, tokens, stops)
