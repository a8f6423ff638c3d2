"""Kinds of jobs, which are the actions, and what the job list says of one that is done."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from analysis.errors import sentence
from pruning.actions.action import Action
from pruning.actions.listing import SENTENCES, action
from pruning.requests.model import ActionRequest


class _Kinds(Mapping[str, Action[Any, Any]]):
    """The actions by name; one is imported when it is asked for."""

    def __getitem__(self, name: str) -> Action[Any, Any]:
        SENTENCES[name]  # or a KeyError
        return action(name)

    def __contains__(self, name: object) -> bool:
        return name in SENTENCES

    def __iter__(self) -> Iterator[str]:
        return iter(SENTENCES)

    def __len__(self) -> int:
        return len(SENTENCES)


KINDS: Final = _Kinds()
# The part of a page that lists jobs -> how a person gets there.
_WHERE: Final = {
    "plan": "Plan",
    "export": "Export",
    "explore.loss": "Explore, Evidence",
    "explore.tokens": "Explore, Evidence",
    "evaluate.own": "Evaluate, This model",
    "evaluate.benchmarks": "Evaluate, Benchmarks",
    "evaluate.hidden": "Evaluate, Hidden states",
    "evaluate.ask": "Evaluate, Ask both models or Text lens",
}


def told(kind: str, result: Mapping[str, Any]) -> str:
    """What came of a job, and where it is to be seen; earlier versions kept no sentence."""
    words = "; ".join(str(result.get("sentence", "")).splitlines())
    if not words.partition(" ")[0].endswith(":"):  # the name of what was made
        words = words[:1].upper() + words[1:]
    place = KINDS[kind].place
    where = f"See {_WHERE[place]}." if place else ""
    return " ".join(filter(None, (words and sentence(words), where)))


def kind_of(request: ActionRequest) -> str:
    """The kind of job of a request."""
    return str(request.asked_by)
