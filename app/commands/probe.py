"""Commands that look into what pruning changes: variance, bins, ask."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.table import Table
from rich.text import Text

from analysis.model import MoEModel, load_model_index
from app.commands import measuring, options
from app.commands.files import check_ending, write_table
from app.console import follow, out, show_frame
from app.tasks.bins import bins_run
from app.tasks.probe import ask_run
from app.tasks.variance import variance_run
from pruning.evaluate.bins import DEFAULT_BINS, ORDERS, SCOPES, rank_agreement
from pruning.evaluate.drawing import DEFAULT_SAMPLES
from pruning.evaluate.variance_record import variance_table
from pruning.plan import EXPERT_GRANULARITY, load_plan
from pruning.requests.base import validated
from pruning.requests.evaluation import AskRequest, BinsRequest
from pruning.requests.variance import VarianceRequest

OneCorpus = Annotated[str, typer.Option("--corpus", help="Text to run on, as for calibrate.")]
Plans = Annotated[
    list[Path] | None, typer.Option("--plan", help="plan.json to compare; repeatable.")
]


def _plans_of(model: MoEModel, paths: list[Path] | None) -> dict[str, dict[str, object]]:
    """Plans by the name of their file, checked against the model; equal names get numbers."""
    plans: dict[str, dict[str, object]] = {}
    for number, path in enumerate(paths or (), 1):
        name = path.name if path.name not in plans else f"{path.name} ({number})"
        plans[name] = load_plan(path, model=model).to_dict()
    return plans


def variance(
    model: options.Model,
    corpus: OneCorpus,
    plan: Plans = None,
    criterion: Annotated[
        list[str] | None, typer.Option(help="Criterion to plan by as well; repeatable.")
    ] = None,
    sparsity: Annotated[
        list[str] | None, typer.Option(help="Of the plans by criteria; repeatable.")
    ] = None,
    calibrated_on: measuring.CalibratedOn = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    out_file: options.OutTable = Path("variance.csv"),
    samples: measuring.Samples = DEFAULT_SAMPLES,
    seq_len: measuring.SeqLen = None,
    seed: measuring.Seed = None,
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    batch_size: measuring.BatchSize = 8,
    device_map: measuring.DeviceMap = None,
    offload_folder: measuring.OffloadFolder = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    allow_test_set: options.AllowTestSet = False,
    trust_remote_code: measuring.Trust = False,
) -> None:
    """Variance of hidden states after each layer, full model against pruned, on 4096 tokens."""
    check_ending(out_file)
    described = load_model_index(model, revision=revision)
    plans = _plans_of(described, plan)
    values = {
        "model": model,
        "corpora": (corpus,),
        "plans": tuple(plans.values()),
        "names": tuple(plans),
        "criteria": tuple(criterion or ()),
        "sparsities": tuple(sparsity or ()),
        "calibrated_on": tuple(calibrated_on or ()),
        "gate": gate,
        "samples": samples,
        "seq_len": seq_len,
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "batch_size": batch_size,
        "device_map": device_map,
        "offload_folder": offload_folder,
        "revision": revision,
        "stats_dir": stats_dir,
        "allow_test_set": allow_test_set,
        "trust_remote_code": trust_remote_code,
    }
    table = variance_table(follow(variance_run(validated(VarianceRequest, values))))
    wide = table.pivot_table(index="layer", columns="model", values="variance", sort=False)
    show_frame("variance of hidden states", wide.reset_index())
    write_table(table, out_file)
    out.print(f"{out_file}: {table['num_tokens'].iloc[0]} tokens", markup=False)


def bins(
    model: options.Model,
    corpus: OneCorpus,
    criterion: options.CriterionName,
    out_file: options.OutTable = Path("bins.csv"),
    number: Annotated[int, typer.Option("--bins", help="How many bins.")] = DEFAULT_BINS,
    scope: Annotated[
        str | None,
        typer.Option(
            help=f"Order within each layer, or of all: {', '.join(SCOPES)}. Default: layer for "
            "experts, global for neurons where the criterion compares layers."
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help=f"Order of the bins: {', '.join(ORDERS)}; index is by place, as HEAPr's Figure 3."
        ),
    ] = ORDERS[0],
    granularity: options.Granularity = EXPERT_GRANULARITY,
    calibrated_on: measuring.CalibratedOn = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    samples: measuring.Samples = DEFAULT_SAMPLES,
    seq_len: measuring.SeqLen = None,
    seed: measuring.Seed = None,
    count: measuring.Counted = "auto",
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    batch_size: measuring.BatchSize = 8,
    device_map: measuring.DeviceMap = None,
    offload_folder: measuring.OffloadFolder = None,
    hidden_states_dir: measuring.HiddenStatesDir = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    allow_test_set: options.AllowTestSet = False,
    trust_remote_code: measuring.Trust = False,
) -> None:
    """Score against true loss: experts or neurons in bins by saliency, each bin removed alone."""
    check_ending(out_file)
    values = {
        "model": model,
        "corpora": (corpus,),
        "criterion": criterion,
        "bins": number,
        "scope": scope,
        "order": order,
        "granularity": granularity,
        "calibrated_on": tuple(calibrated_on or ()),
        "gate": gate,
        "samples": samples,
        "seq_len": seq_len,
        "seed": seed,
        "count": count,
        "dtype": dtype,
        "device": device,
        "batch_size": batch_size,
        "device_map": device_map,
        "offload_folder": offload_folder,
        "hidden_states_dir": hidden_states_dir,
        "revision": revision,
        "stats_dir": stats_dir,
        "allow_test_set": allow_test_set,
        "trust_remote_code": trust_remote_code,
    }
    record = follow(bins_run(validated(BinsRequest, values)))
    table = record.table
    _show_bins(table, order)
    write_table(table, out_file)
    out.print(
        f"{out_file}: rank correlation of saliency and loss {rank_agreement(table):.2f} "
        "(1: the more salient, the more it costs)",
        markup=False,
    )


def _show_bins(table: pd.DataFrame, order: str) -> None:
    shown = table[["bin", "removed", "saliency", "share", "loss_change", "low", "high"]]
    first = "least salient first" if order == ORDERS[0] else "by place"
    show_frame(f"each bin removed alone, {first}", shown)


def ask(
    model: options.Model,
    prompt: Annotated[str, typer.Option(help="What the models are asked.")],
    plan: Plans = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer, at most.")] = 128,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands, not as a chat.")
    ] = False,
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    device_map: measuring.DeviceMap = None,
    offload_folder: measuring.OffloadFolder = None,
    revision: options.Revision = None,
    trust_remote_code: measuring.Trust = False,
) -> None:
    """Answers of the full model and of pruned ones to a prompt, side by side."""
    plans = _plans_of(load_model_index(model, revision=revision), plan)
    values = {
        "model": model,
        "prompt": prompt,
        "plans": tuple(plans.values()),
        "names": tuple(plans),
        "max_new_tokens": max_new_tokens,
        "raw": raw,
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "offload_folder": offload_folder,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }
    answers = follow(ask_run(validated(AskRequest, values)))
    table = Table(show_edge=False, pad_edge=False)
    for answer in answers:
        table.add_column(Text(answer.name), overflow="fold")
    table.add_row(*(Text(answer.text.strip() or "(nothing)") for answer in answers))
    out.print(table)
    for answer in answers[1:]:
        agreed = f"the first {answer.agreed} of {len(answer.ids)} tokens as the full model"
        out.print(f"{answer.name}: {agreed}, {answer.seconds:.1f} s", markup=False)
