"""The command that measures how a pruned model differs from the full one: evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.model import load_model_index
from app.commands import measuring, options
from app.commands.files import check_place, write_result
from app.console import counted, follow, out, show_table
from app.tasks.evaluation import evaluate_run
from pruning.evaluate.drawing import DEFAULT_SAMPLES
from pruning.evaluate.record import EvaluationRecord
from pruning.evaluate.result import MEASURES, Metric
from pruning.evaluate.store import SCHEMA_VERSION
from pruning.plan import load_plan
from pruning.requests.base import validated
from pruning.requests.evaluation import DEFAULT_MEASURED, EvaluateRequest


def evaluate(
    model: options.Model,
    corpus: measuring.Evaluated,
    plan: Annotated[
        list[Path] | None,
        typer.Option(help="plan.json to evaluate; repeatable. Default: the unpruned model."),
    ] = None,
    out_file: options.Out = Path("result.json"),
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
    """Measure how pruned models differ from the full one on held-out text."""
    values = {
        "model": model,
        "corpora": tuple(corpus),
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
    check_place(out_file)
    described = load_model_index(model, revision=revision)
    plans = tuple(load_plan(path, model=described).to_dict() for path in plan or ())
    records = follow(evaluate_run(validated(EvaluateRequest, {**values, "plans": plans})))
    names = [path.name for path in plan or ()] or ["unpruned"]
    show_records(records, names * len(corpus))
    write_result(out_file, results_of(records))
    out.print(f"{out_file}: {counted(len(records), 'evaluation')}", markup=False)


def results_of(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """The content of result.json: the evaluation, or `evaluations` where there are several."""
    if len(records) == 1:
        return records[0].to_dict()
    whole = {"schema_version": SCHEMA_VERSION}
    return whole | {"evaluations": [record.to_dict() for record in records]}


def show_records(records: Sequence[EvaluationRecord], names: Sequence[str]) -> None:
    """Print a table of the results, one row for each plan and corpus, and what was evaluated on."""
    measured = [name for name in MEASURES if any(name in each.metrics for each in records)]
    rows = [
        (
            name,
            record.corpus["name"],
            f"{record.plan.removed:.1%}",
            *(_shown(record.metrics.get(measure)) for measure in measured),
            _shown(record.full.get("nll")),
            record.num_tokens,
        )
        for name, record in zip(names, records, strict=True)
    ]
    labels = [MEASURES[measure].label for measure in measured]
    show_table("", ("plan", "corpus", "removed", *labels, "full loss", "tokens"), rows)
    for corpus in {str(record.corpus["name"]): record.corpus for record in records}.values():
        out.print(f"{corpus['name']}: {corpus['drawn']}", markup=False)


def _shown(metric: Metric | None) -> str:
    """Mean and interval."""
    if metric is None:
        return "-"
    if metric.low is None or metric.high is None:
        return f"{metric.mean:.4f}"
    return f"{metric.mean:.4f} [{metric.low:.4f}, {metric.high:.4f}]"
