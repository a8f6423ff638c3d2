"""The command of calibrations, which takes several corpora."""

from typing import TYPE_CHECKING, Annotated

from analysis.model.opening import load_model_index
from analysis.numbers.words import counted, time_in_words
from analysis.progress import Whole
from analysis.stats.manifest import CorpusRef
from analysis.stats.rates import expected_seconds
from app.cli.action import end, show
from app.cli.derive import command
from app.console import finish, follow, out, show_facts
from pruning.actions.action import Call
from pruning.actions.calibrate import ACTION
from pruning.option import Option
from pruning.plan.sizes import format_bytes
from pruning.requests.calibration import CalibrateRequest
from pruning.spec.options import Switch, each_once
from pruning.tasks.calibration import check_corpora, estimate_run
from pruning.tasks.memory import item_bytes, python_memory

if TYPE_CHECKING:
    from analysis.calibration.memory import MemoryNeeds


@command(CalibrateRequest, repeatable="corpus")
def calibrate(
    requests: list[CalibrateRequest],
    *,
    dry_run: Annotated[Switch, Option("Show tokens, memory and time; run nothing.")] = False,
) -> None:
    """The action on each corpus, after all of them were opened."""
    request = requests[0]  # what is wrong with the model is said before torch is imported
    load_model_index(request.model, revision=request.revision)
    first = set(each_once(request.corpus for request in requests))
    requests = [request for request in requests if request.corpus in first]
    if len(requests) > 1:  # a single one is opened at once anyway
        follow(check_corpora(requests))
    if dry_run:
        _dry_run(requests)
        return
    for call in map(Call, requests):
        outcome = follow(ACTION.steps(call))
        show(outcome.shown)
        end(outcome, call)


def _dry_run(requests: list[CalibrateRequest]) -> None:
    forecasts = [follow(estimate_run(request)) for request in requests]
    first = requests[0]  # all have one model, dtype and device
    model = load_model_index(first.model, revision=first.revision)
    own = python_memory(item_bytes(model, first.dtype), first.device)
    times = [expected_seconds(Whole(guess.costs)) for _, guess in forecasts]
    for (corpus, guess), seconds in zip(forecasts, times, strict=True):
        prepared = dict(corpus.prepared)
        source = prepared.pop("source", {})
        show_facts(
            {
                "corpus": corpus.name,
                **{key.replace("_", " "): value for key, value in prepared.items()},
                **{key.replace("_", " "): value for key, value in source.items()},
                "documents": corpus.num_documents,
                "sequences": corpus.num_sequences,
                "tokens": corpus.num_tokens,
                "counted": corpus.num_counted,
                **({"padded": corpus.num_padded} if corpus.num_padded else {}),
                **_dropped(corpus),
                "memory": format_bytes(own + guess.memory_bytes),
                **_by_layers(guess.needs, own),
                "memory free": f"{format_bytes(guess.needs.free)}; {guess.needs.advice}",
                "time": f"about {time_in_words(seconds)}",
            }
        )
        out.print()
    memory = own + max(guess.memory_bytes for _, guess in forecasts)
    finish(
        f"about {format_bytes(memory)} of memory, about {time_in_words(sum(times))}; "
        "nothing was run",
        {"memory_bytes": memory, "seconds": sum(times)},
    )


def _by_layers(needs: "MemoryNeeds", own: int) -> dict[str, str]:
    """What layers and blocks of experts need, with Python's `own`; nothing if they are refused."""
    if needs.inseparable:
        return {}
    layers = {"memory by layers": format_bytes(own + needs.streamed)}
    if not needs.in_blocks:
        return layers
    blocks = f"{counted(needs.experts_at_once, 'expert')} of a layer at once"
    cost = "each weight is read once, what surrounds experts is computed twice"
    return layers | {"memory by blocks": f"{format_bytes(own + needs.in_blocks)}, {blocks}; {cost}"}


def _dropped(corpus: CorpusRef) -> dict[str, str]:
    """What a corpus loses where sequences are cut; nothing if it loses nothing."""
    documents = counted(corpus.num_dropped_documents, "whole document")
    parts = [counted(corpus.num_dropped, "token")] if corpus.num_dropped else []
    parts += [documents] if corpus.num_dropped_documents else []
    return {"dropped": ", ".join(parts)} if parts else {}
