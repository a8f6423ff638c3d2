"""The command that measures how a pruned model differs from the full one: evaluate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.errors import StatsError
from analysis.model import load_model_index
from analysis.store import PARTIAL, write_durably
from app.commands import options
from app.console import counted, follow, out, show_table
from app.requests.base import DEFAULT_SEQ_LEN, validated
from app.requests.evaluation import DEFAULT_MEASURED, EvaluateRequest
from app.tasks.evaluation import evaluate_run
from pruning.evaluate.drawing import DEFAULT_SAMPLES, SCORED
from pruning.evaluate.record import SCHEMA_VERSION, EvaluationRecord
from pruning.evaluate.result import MEASURES, Metric
from pruning.plan import load_plan

Evaluated = Annotated[
    list[str],
    typer.Option("--corpus", help="Text to evaluate on, as for calibrate; repeatable."),
]
Measures = Annotated[
    str, typer.Option(help=f"What is measured, joined by commas: {', '.join(MEASURES)}.")
]
Samples = Annotated[int, typer.Option(help="Samples of each corpus.")]
SeqLen = Annotated[
    int | None,
    typer.Option(help=f"Tokens of a sample; default: a preset's own, else {DEFAULT_SEQ_LEN}."),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of documents, draws, bootstrap; default: the calibration's order, 42."),
]
Counted = Annotated[
    str,
    typer.Option(
        "--count", help=f"Tokens that are predicted: {', '.join(SCORED)} (auto: answers if any)."
    ),
]
Dtype = Annotated[str, typer.Option(help="Element type: auto, float32, bfloat16 ...")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda ...")]
BatchSize = Annotated[int, typer.Option(help="Samples in one forward.")]
Attention = Annotated[str, typer.Option(help="Attention: auto, eager, sdpa ...")]
DeviceMap = Annotated[
    str | None, typer.Option(help="Spread the weights over devices, memory and disk: auto ...")
]
MaxMemory = Annotated[
    list[str] | None, typer.Option(help="With --device-map, DEVICE=SIZE; repeatable.")
]
OffloadFolder = Annotated[
    Path | None, typer.Option(help="With --device-map, where weights go that fit nowhere else.")
]
HiddenStatesDir = Annotated[
    Path | None,
    typer.Option(help="Keep the full model's hidden states here; default: in memory if small."),
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.")
]


def evaluate(
    model: options.Model,
    corpus: Evaluated,
    plan: Annotated[
        list[Path] | None,
        typer.Option(help="plan.json to evaluate; repeatable. Default: the unpruned model."),
    ] = None,
    out_file: Annotated[
        Path, typer.Option("--out", "-o", help="File to write.", dir_okay=False)
    ] = Path("result.json"),
    measures: Measures = DEFAULT_MEASURED,
    samples: Samples = DEFAULT_SAMPLES,
    seq_len: SeqLen = None,
    seed: Seed = None,
    count: Counted = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
    batch_size: BatchSize = 8,
    attention: Attention = "auto",
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    offload_folder: OffloadFolder = None,
    hidden_states_dir: HiddenStatesDir = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    allow_test_set: options.AllowTestSet = False,
    trust_remote_code: Trust = False,
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


def check_place(path: Path) -> None:
    """Refuse a place that cannot be written to, before any work.

    Raises:
        StatsError: its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise StatsError(f"The folder of {path} does not exist; make it first.")


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all.

    Raises:
        StatsError: the place cannot be written to.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        write_durably(path, text.encode())
    except OSError as error:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)
        raise StatsError(f"The result cannot be written to {path}: {error.strerror}.") from error


def show_records(records: Sequence[EvaluationRecord], names: Sequence[str]) -> None:
    """Print a table of the results, one row for each plan and corpus, and what was evaluated on."""
    measured = [name for name in MEASURES if any(name in each.metrics for each in records)]
    rows = [
        (
            name,
            record.corpus["name"],
            f"{record.plan['removed']:.1%}",
            *(shown(record.metrics.get(measure)) for measure in measured),
            shown(record.full.get("nll")),
            record.num_tokens,
        )
        for name, record in zip(names, records, strict=True)
    ]
    labels = [MEASURES[measure].label for measure in measured]
    show_table("", ("plan", "corpus", "removed", *labels, "full loss", "tokens"), rows)
    for corpus in {str(record.corpus["name"]): record.corpus for record in records}.values():
        out.print(f"{corpus['name']}: {corpus['drawn']}", markup=False)


def shown(metric: Metric | None) -> str:
    """Mean and interval."""
    if metric is None:
        return "-"
    if metric.low is None or metric.high is None:
        return f"{metric.mean:.4f}"
    return f"{metric.mean:.4f} [{metric.low:.4f}, {metric.high:.4f}]"
