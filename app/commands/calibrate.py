"""The calibrate command: expert statistics of a model on corpora."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.corpora import corpus_name
from analysis.stats.store import Run
from analysis.stats.tables import CorpusRef
from app.commands import measuring, options
from app.console import follow, out, show_facts
from app.tasks.calibration import calibrate_run, check_corpora, estimate_run
from pruning.requests.base import (
    DEFAULT_ANSWER_TOKENS,
    DEFAULT_SEED,
    DEFAULT_SEQ_LEN,
    DEFAULT_TOKENS,
    CalibrateRequest,
    validated,
)
from pruning.sizes import format_bytes

_OR_PRESET = "default: what a named data set's paper used, else"


def calibrate(
    model: options.Model,
    corpus: Annotated[
        list[str],
        typer.Option(
            help="Corpus: demo-code, demo-prose, demo-math; c4, evol-codealpaca, tulu-math, "
            "wikitext2 (or =PATH behind it: a copy); hub:owner/name; or a file. Repeatable: each "
            "makes a run of its own."
        ),
    ],
    tokens: Annotated[
        int | None, typer.Option(help=f"Tokens of each corpus; {_OR_PRESET} {DEFAULT_TOKENS}.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help=f"Tokens in a sequence; {_OR_PRESET} {DEFAULT_SEQ_LEN}.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help=f"Seed of what is drawn; {_OR_PRESET} {DEFAULT_SEED}.")
    ] = None,
    packing: Annotated[
        str,
        typer.Option(
            help="Documents into sequences: concatenate (end to end), pack (side by side, unseen "
            "by each other), pad (one each), auto (concatenate text, keep rows of token ids)."
        ),
    ] = "auto",
    truncate: Annotated[
        str | None,
        typer.Option(
            help="Of a document longer than a sequence keep head or tail, or drop; default: head, "
            "and rows of token ids stay whole unless --seq-len is given."
        ),
    ] = None,
    count: Annotated[
        str, typer.Option(help="Tokens that enter the sums: all, or of the response only.")
    ] = "all",
    answers: Annotated[
        str,
        typer.Option(help="Answers to prompts: given, or own (the model's, greedy)."),
    ] = "given",
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"With --answers own, tokens of an answer at most; default: "
            f"{DEFAULT_ANSWER_TOKENS}."
        ),
    ] = None,
    select: Annotated[
        str | None, typer.Option(help="Choose representative documents: kmeans, with --clusters.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="Documents that --select chooses.")] = None,
    groups: Annotated[
        str,
        typer.Option(
            help="Statistics, joined by commas: routed (always), router (entropy, co-activation), "
            "damage (exact, of removing each expert), gradient (of every neuron; goes backward), "
            "dense (every expert on every token, for each sample)."
        ),
    ] = "routed",
    batch_size: Annotated[int, typer.Option(help="Sequences in one forward.")] = 8,
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    attention: Annotated[
        str, typer.Option(help="Attention: auto, eager, sdpa, flash_attention_2 ...")
    ] = "auto",
    device_map: Annotated[
        str | None,
        typer.Option(help="Spread the weights over devices, memory and disk: auto, balanced ..."),
    ] = None,
    max_memory: Annotated[
        list[str] | None,
        typer.Option(help="With --device-map, DEVICE=SIZE, as 0=20GiB or cpu=8GiB; repeatable."),
    ] = None,
    offload_folder: measuring.OffloadFolder = None,
    stream_layers: Annotated[
        bool,
        typer.Option(
            "--stream-layers", help="Load one layer at a time: for models larger than memory."
        ),
    ] = False,
    hidden_states_dir: Annotated[
        Path | None,
        typer.Option(help="With --stream-layers, keep hidden states in this folder."),
    ] = None,
    expert_parallel: Annotated[
        bool,
        typer.Option("--expert-parallel", help="Under torchrun, each process holds some experts."),
    ] = False,
    checkpoint_activations: Annotated[
        bool,
        typer.Option(
            "--checkpoint-activations",
            help="With the group gradient, compute layers again instead of keeping activations.",
        ),
    ] = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    allow_test_set: options.AllowTestSet = False,
    trust_remote_code: measuring.Trust = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take: tokens, memory, time.")
    ] = False,
    resume: Annotated[
        bool, typer.Option(help="Go on with an interrupted run of the same settings.")
    ] = True,
) -> None:
    """Run the model once over each corpus and cache its expert statistics."""
    common = {
        "model": model,
        "tokens": tokens,
        "seq_len": seq_len,
        "seed": seed,
        "packing": packing,
        "truncate": truncate,
        "count": count,
        "answers": answers,
        "answer_tokens": answer_tokens,
        "select": select,
        "clusters": clusters,
        "groups": groups,
        "batch_size": batch_size,
        "dtype": dtype,
        "device": device,
        "attention": attention,
        "device_map": device_map,
        "max_memory": tuple(max_memory or ()),
        "offload_folder": offload_folder,
        "stream_layers": stream_layers,
        "hidden_states_dir": hidden_states_dir,
        "expert_parallel": expert_parallel,
        "checkpoint_activations": checkpoint_activations,
        "revision": revision,
        "stats_dir": stats_dir,
        "allow_test_set": allow_test_set,
        "trust_remote_code": trust_remote_code,
        "resume": resume,
    }
    # Named twice, a corpus is still one run.
    names = dict.fromkeys(corpus)
    requests = [validated(CalibrateRequest, {**common, "corpus": name}) for name in names]
    if len(requests) > 1:  # a single one is opened at once anyway
        follow(check_corpora(requests))
    if dry_run:
        _dry_run(requests)
        return
    for request in requests:
        _say(follow(calibrate_run(request)), request.corpus)


def _say(run: Run, asked: str) -> None:
    made = run.manifest.made
    dropped = sum(corpus.num_dropped for corpus in run.manifest.corpora)
    out.print(
        f"{run.manifest.run_id}: {run.manifest.num_tokens:,} tokens of {run.manifest.corpus}"
        + (f" ({dropped:,} read and dropped)" if dropped else "")
        + f", {made.get('seconds')} s, {made.get('tokens_per_second')} tokens/s",
        markup=False,
    )
    out.print(str(run.path), markup=False)
    _say_other_name(run, asked)


def _say_other_name(run: Run, asked: str) -> None:
    """Say how commands find a run that was made of the same tokens under another name."""
    stored, wanted = run.manifest.corpus, corpus_name(asked)
    if wanted != stored:
        out.print(
            f"{wanted} has the same tokens as {stored}, under which the run is kept: choose it "
            f"with --corpus {stored} or --run {run.manifest.run_id}",
            markup=False,
        )


def _dry_run(requests: list[CalibrateRequest]) -> None:
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


def _prepared(corpus: CorpusRef) -> dict[str, object]:
    source = corpus.prepared.get("source", {})
    flat = {key: value for key, value in corpus.prepared.items() if key != "source"}
    return flat | {key.replace("_", " "): value for key, value in source.items()}
