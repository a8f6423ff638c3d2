"""Commands on a model: inspect, calibrate, weights."""

from typing import Annotated

import typer

from analysis.criteria.weight_based import is_zero_expert
from analysis.model import MoEModel, load_model_index
from analysis.store import load_weight_stats
from app.commands import options
from app.commands.console import follow, out, show_facts, show_table
from app.task_requests import (
    DEFAULT_SEQ_LEN,
    DEFAULT_TOKENS,
    CalibrateRequest,
    WeightsRequest,
    validated,
)
from app.tasks import calibrate_run, estimate_run, weights_run
from pruning.sizes import format_bytes, size_report


def inspect(model: options.Model, revision: options.Revision = None) -> None:
    """Show architecture, experts, sizes and what can be pruned; reads headers only."""
    described = load_model_index(model, revision=revision)
    show_facts(_facts(described))
    table = size_report(described).table
    sizes = zip(table["part"], table["before"].tolist(), strict=True)
    rows = [(str(part), format_bytes(size)) for part, size in sizes]
    show_table("\nSize on disk", ("part", "bytes"), rows)
    layer = described.layers[0]
    most = (layer.num_experts - layer.top_k) / layer.num_experts
    out.print(
        f"\nWhole experts can be pruned up to a sparsity of {most:.4g}: each router picks "
        f"{layer.top_k} experts per token, so at least {layer.top_k} must stay."
    )


def _facts(model: MoEModel) -> dict[str, object]:
    counts = sorted({layer.num_experts for layer in model.layers})
    config = model.checkpoint.config
    return {
        "model": model.name,
        "architecture": f"{model.family.label} ({model.family.model_type})",
        "layers": f"{config['num_hidden_layers']}, {len(model.layers)} with experts",
        "experts per layer": ", ".join(map(str, counts)),
        "experts per token": model.layers[0].top_k,
        "gate weights": model.family.gate_rule,
        "hidden size": model.hidden_size,
        "expert width": config.get(model.family.width_key, "unknown"),
        "parameters": f"{model.checkpoint.num_params:,}",
        "element type": model.dtype,
        "shards": len(model.checkpoint.shards),
        "identity": model.identity[:16],
    }


def calibrate(
    model: options.Model,
    corpus: Annotated[
        list[str],
        typer.Option(help="Corpus: demo-code, demo-prose, demo-math or a file; repeatable."),
    ],
    tokens: Annotated[int, typer.Option(help="Tokens to use.")] = DEFAULT_TOKENS,
    seq_len: Annotated[int, typer.Option(help="Tokens in a sequence.")] = DEFAULT_SEQ_LEN,
    seed: Annotated[int, typer.Option(help="Seed of the order of documents.")] = 42,
    batch_size: Annotated[int, typer.Option(help="Sequences in one forward.")] = 8,
    dtype: Annotated[str, typer.Option(help="Element type: auto, float32, bfloat16 ...")] = "auto",
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda ...")] = "auto",
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.")
    ] = False,
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
        "batch_size": batch_size,
        "dtype": dtype,
        "device": device,
        "revision": revision,
        "stats_dir": stats_dir,
        "trust_remote_code": trust_remote_code,
        "resume": resume,
    }
    requests = [validated(CalibrateRequest, {**common, "corpus": name}) for name in corpus]
    if dry_run:
        _dry_run(requests)
        return
    for request in requests:
        run = follow(calibrate_run(request))
        made = run.manifest.made
        out.print(
            f"{run.manifest.run_id}: {run.manifest.num_tokens:,} tokens of {request.corpus}, "
            f"{made.get('seconds')} s, {made.get('tokens_per_second')} tokens/s",
            markup=False,
        )
        out.print(str(run.path), markup=False)


def _dry_run(requests: list[CalibrateRequest]) -> None:
    rows = []
    for request in requests:
        guess = follow(estimate_run(request))
        rows.append(
            (
                request.corpus,
                guess.num_sequences,
                guess.num_tokens,
                guess.num_padded,
                format_bytes(guess.memory_bytes),
                f"about {guess.seconds:.0f} s",
            )
        )
    show_table(
        "Nothing was run.", ("corpus", "sequences", "tokens", "padded", "memory", "time"), rows
    )


def weights(
    model: options.Model,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and cache them."""
    request = validated(
        WeightsRequest, {"model": model, "revision": revision, "stats_dir": stats_dir}
    )
    run = follow(weights_run(request))
    out.print(f"{run.manifest.run_id}: {run.manifest.made['seconds']} s", markup=False)
    empty = int(is_zero_expert(load_weight_stats(run).per_expert()).sum())
    if empty:
        out.print(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    out.print(str(run.path), markup=False)
