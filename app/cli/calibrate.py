"""The commands that collect statistics: calibrate, weights."""

from typing import TYPE_CHECKING, Annotated

from app.cli.derive import command
from app.console import follow, out, show_facts
from pruning.requests.base import Option
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.options import Switch

if TYPE_CHECKING:
    from analysis.stats.store import Run
    from analysis.stats.tables import CorpusRef


@command(CalibrateRequest, each="corpus")
def calibrate(
    requests: list[CalibrateRequest],
    *,
    dry_run: Annotated[
        Switch, Option("Only say what it would take: tokens, memory, time.")
    ] = False,
) -> None:
    """Run the model once over each corpus and cache its expert statistics."""
    from pruning.tasks.calibration import calibrate_run, check_corpora

    if len(requests) > 1:  # a single one is opened at once anyway
        follow(check_corpora(requests))
    if dry_run:
        _dry_run(requests)
        return
    for request in requests:
        _say(follow(calibrate_run(request)), request.corpus)


def _say(run: "Run", asked: str) -> None:
    from analysis.corpora import corpus_name

    made, stored, wanted = run.manifest.made, run.manifest.corpus, corpus_name(asked)
    dropped = sum(corpus.num_dropped for corpus in run.manifest.corpora)
    out.print(
        f"{run.manifest.run_id}: {run.manifest.num_tokens:,} tokens of {stored}"
        + (f" ({dropped:,} read and dropped)" if dropped else "")
        + f", {made.get('seconds')} s, {made.get('tokens_per_second')} tokens/s",
        markup=False,
    )
    out.print(str(run.path), markup=False)
    if wanted != stored:
        out.print(
            f"{wanted} has the same tokens as {stored}, under which the run is kept: choose it "
            f"with --corpus {stored} or --run {run.manifest.run_id}",
            markup=False,
        )


def _dry_run(requests: list[CalibrateRequest]) -> None:
    from pruning.sizes import format_bytes
    from pruning.tasks.calibration import estimate_run

    forecasts = [follow(estimate_run(request)) for request in requests]
    out.print("Nothing was run.")
    for corpus, guess in forecasts:
        out.print()
        show_facts(
            {
                "corpus": corpus.name,
                **_prepared(corpus),
                "documents": corpus.num_documents,
                "sequences": corpus.num_sequences,
                "tokens": corpus.num_tokens,
                "counted": corpus.num_counted,
                "padded": corpus.num_padded,
                "dropped": f"{corpus.num_dropped:,} tokens, {corpus.num_dropped_documents:,} "
                "whole documents",
                "memory": format_bytes(guess.memory_bytes),
                "memory by layers": format_bytes(guess.needs.streamed),
                "memory free": f"{format_bytes(guess.needs.free)}; {guess.needs.advice}",
                "time": f"about {guess.seconds:.0f} s",
            }
        )


def _prepared(corpus: "CorpusRef") -> dict[str, object]:
    source = corpus.prepared.get("source", {})
    flat = {key: value for key, value in corpus.prepared.items() if key != "source"}
    return flat | {key.replace("_", " "): value for key, value in source.items()}


@command(WeightsRequest)
def weights(request: WeightsRequest) -> None:
    """Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and cache them."""
    from analysis.criteria.weight_based import is_zero_expert
    from analysis.stats.store import load_weight_stats
    from pruning.tasks.calibration import weights_run

    run = follow(weights_run(request))
    out.print(f"{run.manifest.run_id}: {run.manifest.made['seconds']} s", markup=False)
    empty = int(is_zero_expert(load_weight_stats(run).per_expert()).sum())
    if empty:
        out.print(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    out.print(str(run.path), markup=False)
