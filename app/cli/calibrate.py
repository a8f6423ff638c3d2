"""The commands that collect statistics: calibrate, weights."""

from typing import Annotated

from analysis.corpora.spec import corpus_name, is_same_corpus
from analysis.criteria.weight_based import zero_experts
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from analysis.ranking.choose import run_by_corpus
from analysis.stats.manifest import CorpusRef, Run
from analysis.stats.reading import load_weight_stats
from analysis.stats.store import StatsStore, stats_store
from app.cli.derive import command
from app.console import finish, follow, note, out, show_facts
from pruning.plan.sizes import format_bytes
from pruning.planning.searches import duration_text
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.following import next_plan, usual_budget
from pruning.requests.model import WeightsRequest
from pruning.spec.base import Option, option_words
from pruning.spec.options import Switch, each_once
from pruning.tasks.calibration import calibrate_run, check_corpora, estimate_run, weights_run


@command(CalibrateRequest, each="corpus")
def calibrate(
    requests: list[CalibrateRequest],
    *,
    dry_run: Annotated[Switch, Option("Show tokens, memory and time; run nothing.")] = False,
) -> None:
    """Run the model once over each corpus and cache its expert statistics.

    Example: moeprune calibrate demo --corpus demo-code --dry-run
    """
    request = requests[0]  # what is wrong with the model is said before torch is imported
    model = load_model_index(request.model, revision=request.revision)
    first = set(each_once(each.corpus for each in requests))
    requests = [each for each in requests if each.corpus in first]
    if len(requests) > 1:  # a single one is opened at once anyway
        follow(check_corpora(requests))
    if dry_run:
        _dry_run(requests)
        return
    for request in requests:
        earlier_ids = {each.manifest.run_id for each in stats_store(request.stats_dir).runs()}
        run = follow(calibrate_run(request))
        run_corpus, corpus = run.manifest.corpus, corpus_name(request.corpus)
        if not is_same_corpus(corpus, run_corpus):
            note(
                f"{corpus} has the same tokens as {run_corpus}, under which the run is kept: "
                f"choose it with --calibrated-on {run_corpus} or --run {run.manifest.run_id}"
            )
        _say_run(request, model, run, is_new=run.manifest.run_id not in earlier_ids)


def _say_run(request: CalibrateRequest, model: MoEModel, run: Run, *, is_new: bool) -> None:
    """Print what a calibration counted; its speed only where it was this command that ran it."""
    manifest, record = run.manifest, run.manifest.made
    dropped = sum(corpus.num_dropped for corpus in manifest.corpora)
    speed = f"{record.get('seconds')} s, {record.get('tokens_per_second')} tokens/s"
    words = (
        f"{manifest.run_id}: {manifest.num_tokens:,} tokens of {manifest.corpus}"
        + (f" ({dropped:,} read and dropped)" if dropped else "")
        + (f", {speed}" if is_new else ", from the cache")
        + f"\n{run.path}"
    )
    result = {"run": manifest.run_id, "path": str(run.path), "tokens": manifest.num_tokens}
    flags = option_words(request, only=("revision", "stats_dir"))
    by = ("--criterion", "reap", *_words_for(run, stats_store(request.stats_dir)))
    finish(
        words,
        {**result, "dropped_tokens": dropped, "cached": not is_new},
        next_plan(request.model, *by, *usual_budget(model), *flags),
    )


def _words_for(run: Run, store: StatsStore) -> tuple[str, str]:
    """The option that plans by this run: its corpus, unless another run goes by that name."""
    corpus, run_id = run.manifest.corpus, run.manifest.run_id
    runs = store.of_model(run.manifest.model.identity, "routed")
    named = run_by_corpus(runs).get(corpus, run)  # of a launcher, only the first process has it
    is_named = named.manifest.run_id == run_id
    return ("--calibrated-on", corpus) if is_named else ("--run", run_id)


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
                **{key.replace("_", " "): value for key, value in prepared.items()},
                **{key.replace("_", " "): value for key, value in source.items()},
                "documents": corpus.num_documents,
                "sequences": corpus.num_sequences,
                "tokens": corpus.num_tokens,
                "counted": corpus.num_counted,
                **({"padded": corpus.num_padded} if corpus.num_padded else {}),
                **_dropped(corpus),
                "memory": format_bytes(guess.memory_bytes),
                "memory by layers": format_bytes(guess.needs.streamed),
                "memory free": f"{format_bytes(guess.needs.free)}; {guess.needs.advice}",
                "time": f"about {duration_text(guess.seconds)}",
            }
        )


def _dropped(corpus: CorpusRef) -> dict[str, str]:
    """What a corpus loses where sequences are cut; nothing if it loses nothing."""
    documents = counted(corpus.num_dropped_documents, "whole document")
    parts = [counted(corpus.num_dropped, "token")] if corpus.num_dropped else []
    parts += [documents] if corpus.num_dropped_documents else []
    return {"dropped": ", ".join(parts)} if parts else {}


@command(WeightsRequest)
def weights(request: WeightsRequest) -> None:
    """Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and cache them.

    Example: moeprune weights demo
    """
    earlier_ids = {each.manifest.run_id for each in stats_store(request.stats_dir).runs()}
    run = follow(weights_run(request))
    model = load_model_index(request.model, revision=request.revision)
    empty = int(zero_experts(load_weight_stats(run).per_expert()).sum())
    if empty:
        note(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    name, layers = run.manifest.run_id, run.manifest.model.layers
    experts = sum(layer.num_experts for layer in layers)
    flags = option_words(request, only=("revision", "stats_dir"))
    words = "from the cache" if name in earlier_ids else f"{run.manifest.made.get('seconds')} s"
    finish(
        f"{name}: weights of {experts:,} experts, {words}\n{run.path}",
        {"run": name, "path": str(run.path), "experts": experts, "zero_experts": empty},
        next_plan(request.model, "--criterion", "aimer", *usual_budget(model), *flags),
    )
