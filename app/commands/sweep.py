"""The command that evaluates criteria against sparsities: sweep."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from analysis.errors import StatsError, unknown_name
from app.commands import measuring, options
from app.commands.files import check_ending, write_table
from app.console import counted, follow, out, show_table
from app.tasks.evaluation import sweep_run
from pruning.evaluate.drawing import DEFAULT_SAMPLES
from pruning.evaluate.record import evaluation_table
from pruning.evaluate.result import MEASURES
from pruning.plan import EXPERT_GRANULARITY
from pruning.requests.base import validated
from pruning.requests.evaluation import DEFAULT_MEASURED, SweepRequest

AGAINST = ("removed", "bytes", "active_params", "expert_flops")


def sweep(
    model: options.Model,
    corpus: measuring.Evaluated,
    criterion: Annotated[
        list[str],
        typer.Option(help="Criterion, such as reap, aimer, random or b,alpha,beta; repeatable."),
    ],
    sparsity: Annotated[
        list[str], typer.Option(help="Fraction of experts removed: 0.5 or 50%; repeatable.")
    ],
    out_file: options.OutTable = Path("sweep.csv"),
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the first measure too: .html, .svg, .png, .pdf.", dir_okay=False),
    ] = None,
    against: Annotated[
        str, typer.Option(help=f"What --plot has below: {', '.join(AGAINST)}.")
    ] = "removed",
    calibrated_on: measuring.CalibratedOn = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    schedule: Annotated[str, typer.Option(help="How each budget is spread over layers.")] = (
        "uniform"
    ),
    granularity: options.Granularity = EXPERT_GRANULARITY,
    atom_scope: Annotated[
        str, typer.Option(help="Neurons compete within an expert, a layer, or all layers (global).")
    ] = "expert",
    measures: measuring.Measures = DEFAULT_MEASURED,
    samples: measuring.Samples = DEFAULT_SAMPLES,
    seq_len: measuring.SeqLen = None,
    seed: measuring.Seed = None,
    count: measuring.Counted = "auto",
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    batch_size: measuring.BatchSize = 8,
    attention: measuring.Attention = "auto",
    device_map: measuring.DeviceMap = None,
    max_memory: measuring.MaxMemory = None,
    offload_folder: measuring.OffloadFolder = None,
    hidden_states_dir: measuring.HiddenStatesDir = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    allow_test_set: options.AllowTestSet = False,
    trust_remote_code: measuring.Trust = False,
) -> None:
    """Evaluate every criterion at every sparsity, with one loaded model; writes a tidy table."""
    check_ending(out_file)
    if against not in AGAINST:
        raise StatsError(unknown_name("axis", against, AGAINST))
    values = {
        "model": model,
        "corpora": tuple(corpus),
        "criteria": tuple(criterion),
        "sparsities": tuple(sparsity),
        "calibrated_on": tuple(calibrated_on or ()),
        "gate": gate,
        "schedule": schedule,
        "granularity": granularity,
        "atom_scope": atom_scope,
        "measures": measures,
        "samples": samples,
        "seq_len": seq_len,
        "seed": seed,
        "count": count,
        "dtype": dtype,
        "device": device,
        "batch_size": batch_size,
        "attention": attention,
        "device_map": device_map,
        "max_memory": tuple(max_memory or ()),
        "offload_folder": offload_folder,
        "hidden_states_dir": hidden_states_dir,
        "revision": revision,
        "stats_dir": stats_dir,
        "allow_test_set": allow_test_set,
        "trust_remote_code": trust_remote_code,
    }
    records = follow(sweep_run(validated(SweepRequest, values)))
    table = evaluation_table(records)
    show_sweep(table)
    write_table(table, out_file)
    of = counted(len(records), "evaluation")
    out.print(f"{out_file}: {len(table)} rows of {of}", markup=False)
    if plot:
        draw(table, next(iter(records[0].metrics)), against, plot)


def draw(table: pd.DataFrame, measure: str, against: str, path: Path) -> None:
    """Write the figure of one measure, and say in a sentence what it shows."""
    # Plotly takes a second to import, for which only those who draw should wait.
    from app.figures.files import write_figure
    from app.figures.sweep import describe, sweep_lines

    rows = table[table["measure"] == measure].assign(series=table["criterion"])
    known = MEASURES[measure]
    write_figure(sweep_lines(rows, label=known.axis, against=against), path)
    text = describe(rows, label=known.label, higher_is_better=known.higher_is_better)
    out.print(f"{path}: {text}", markup=False)


def show_sweep(table: pd.DataFrame) -> None:
    """Print one table for each corpus: a row for each plan, a column for each measure."""
    measured = [name for name in MEASURES if name in set(table["measure"])]
    for corpus, rows in table.groupby("corpus", sort=False):
        plans = rows.drop_duplicates("evaluation")
        means = rows.pivot_table(index="evaluation", columns="measure", values="mean")
        shown = [
            (
                criterion or "unpruned",
                f"{removed:.1%}",
                *(f"{means[name][evaluation]:.4f}" for name in measured),
            )
            for evaluation, criterion, removed in zip(
                plans["evaluation"], plans["criterion"], plans["removed"], strict=True
            )
        ]
        labels = [MEASURES[name].label for name in measured]
        show_table(str(corpus), ("criterion", "removed", *labels), shown)
