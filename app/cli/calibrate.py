"""The commands that collect statistics: calibrate, weights."""

from typing import Annotated

from analysis.corpora import corpus_name
from analysis.criteria.weight_based import zero_experts
from analysis.stats.store import load_weight_stats
from app.cli.derive import command
from app.console import follow, out, show_facts
from pruning.requests.base import Option
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.options import Switch
from pruning.sizes import format_bytes
from pruning.tasks.calibration import calibrate_run, check_corpora, estimate_run, weights_run


@command(CalibrateRequest, each="corpus")
def calibrate(
    requests: list[CalibrateRequest],
    *,
    dry_run: Annotated[
        Switch, Option("Only say what it would take: tokens, memory, time.")
    ] = False,
) -> None:
    """Run the model once over each corpus and cache its expert statistics."""
    if len(requests) > 1:  # a single one is opened at once anyway
        follow(check_corpora(requests))
    if dry_run:
        _dry_run(requests)
        return
    for request in requests:
        run = follow(calibrate_run(request))
        made, stored, wanted = run.manifest.made, run.manifest.corpus, corpus_name(request.corpus)
        dropped = sum(corpus.num_dropped for corpus in run.manifest.corpora)
        out.print(
            f"{run.manifest.run_id}: {run.manifest.num_tokens:,} tokens of {stored}"
            + (f" ({dropped:,} read and dropped)" if dropped else "")
            + f", {made.get('seconds')} s, {made.get('tokens_per_second')} tokens/s\n{run.path}"
        )
        if wanted != stored:
            out.print(
                f"{wanted} has the same tokens as {stored}, under which the run is kept: choose "
                f"it with --corpus {stored} or --run {run.manifest.run_id}"
            )


def _dry_run(requests: list[CalibrateRequest]) -> None:
    forecasts = [follow(estimate_run(request)) for request in requests]
    out.print("Nothing was run.")
    for corpus, guess in forecasts:
        prepared = dict(corpus.prepared)
        source = prepared.pop("source", {})
        out.print()
        show_facts(
            {
                "corpus": corpus.name,
                **prepared,
                **{key.replace("_", " "): value for key, value in source.items()},
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


@command(WeightsRequest)
def weights(request: WeightsRequest) -> None:
    """Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and cache them."""
    run = follow(weights_run(request))
    out.print(f"{run.manifest.run_id}: {run.manifest.made['seconds']} s")
    if empty := int(zero_experts(load_weight_stats(run).per_expert()).sum()):
        out.print(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    out.print(str(run.path))
