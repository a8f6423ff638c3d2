"""Commands that measure what pruning changes: evaluate, sweep, sensitivity, variance, bins, ask."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

from analysis.calibration.weights import check_measurable
from analysis.criteria.weight_based import RANDOM
from analysis.errors import UnsupportedModelError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_result, write_table
from app.cli.following import (
    calibrate_command,
    evaluate_command,
    export_command,
    next_plan,
    plan_command,
    usual_budget,
)
from app.cli.plan_names import candidate_names, named_plans, plan_file_names
from app.cli.say import say_notes
from app.cli.say_records import loss_increase, mean_words, show_records
from app.console import counted, finish, follow, out, say, show_frame, show_table, show_texts
from pruning.measures.curves import Sensitivity, from_cost
from pruning.measures.result import MEASURES, RIGHT
from pruning.plan.plan import keep_all, load_plan
from pruning.plan.repair_reference import repaired_name, variant_words
from pruning.plan.sizes import format_bytes
from pruning.records.against_random import random_warnings
from pruning.records.bins import rank_agreement
from pruning.records.evaluation import (
    EvaluationRecord,
    EvaluationStore,
    evaluation_table,
    result_json,
)
from pruning.records.lens import in_short
from pruning.records.plan_facts import VARIANT_COLUMNS
from pruning.records.quality import LossIncrease, is_random, stored_losses
from pruning.records.subsets import subset_table
from pruning.records.variances import variance_table
from pruning.requests.evaluation import (
    AskRequest,
    BinsRequest,
    EvaluateRequest,
    SensitivityRequest,
    SubsetsRequest,
    SweepRequest,
    VarianceRequest,
)
from pruning.spec.base import Option, command_line, option_words, repeated
from pruning.spec.spec import LimitsSpec
from pruning.tasks.evaluation import evaluate_run, sweep_run
from pruning.tasks.probe import ask_run, bins_run, variance_run
from pruning.tasks.sensitivity import Measured, Measurement, sensitivity_run
from pruning.tasks.subsets import subsets_run

_ORIGINAL = {"full": "original"}  # its name in tables, and for people
_PLAN_HELP = "plan.json to evaluate; repeatable. Default: the original model."


@command(EvaluateRequest)
def evaluate(
    request: EvaluateRequest,
    *,
    plan: tuple[Annotated[options.Plan, Option(_PLAN_HELP)], ...] = (),
    out_file: options.Out = Path("result.json"),
) -> None:
    """Measure how pruned models differ from the original on held-out text.

    Example: moeprune evaluate demo --plan plan.json --corpus demo-math --samples 8
    """
    model = load_model_index(request.model, revision=request.revision)
    plan = tuple(dict.fromkeys(plan))
    plans = [load_plan(path, model=model) for path in plan]
    raw_plans = tuple(each.to_dict() for each in plans)
    records = follow(evaluate_run(request.into(EvaluateRequest, plans=raw_plans)))
    plans_by_name = dict(
        zip(plan_file_names(plan) or ["original"], plans or [keep_all(model)], strict=True)
    )
    evaluated_plans = [each.plan for each in records[: len(records) // len(request.corpora)]]
    candidates = candidate_names(plans_by_name, evaluated_plans, request, model)
    names = list(candidates)
    best, loss_words = _least_loss(records, names)
    show_records(records, names * len(request.corpora))
    write_result(out_file, result_json(records))
    store = EvaluationStore(stats_store(request.stats_dir).directories)
    losses = stored_losses(store, model.identity)
    say_notes(random_warnings(dict(zip(names, records, strict=False)), losses))
    finish(
        f"{out_file}: {counted(len(records), 'evaluation')}{loss_words}",
        {"file": str(out_file), "evaluations": [_numbers(each) for each in records]},
        _next_command(request, model, plan[candidates[best]] if plan else None),
    )


def _least_loss(records: Sequence[EvaluationRecord], names: Sequence[str]) -> tuple[str, str]:
    """The candidate that adds least to the loss over all corpora, else the first; and how much.

    `records` come by corpus and then by plan, of which these are the names.
    """
    increases = _increases(records, len(names))
    if not increases:
        return names[0], ""
    best = min(increases, key=lambda number: increases[number].mean)
    least = f"least by {names[best]}: " if len(increases) > 1 else ""
    return names[best], f", {least}{increases[best].words}"


def _increases(records: Sequence[EvaluationRecord], plans: int) -> dict[int, LossIncrease]:
    """What each plan adds to the loss, by its number; those that were measured on every corpus.

    `records` come by corpus and then by plan.
    """
    increases = {}
    for number in range(plans):
        added = {str(each.corpus["name"]): loss_increase(each) for each in records[number::plans]}
        known = {name: more for name, more in added.items() if more is not None}
        if len(known) == len(added):
            increases[number] = LossIncrease(known)
    return increases


def _next_command(request: EvaluateRequest, model: MoEModel, plan: Path | None) -> str:
    """The command that comes next: an export, or what makes a plan where none was evaluated."""
    if plan is None:
        try:
            check_measurable(model)
        except UnsupportedModelError:  # weights that are quantised rank nothing
            return calibrate_command(request, model)
        return plan_command(request, "aimer", (), usual_budget(model))
    words = ("--plan", str(plan), *option_words(request, only=("revision",)))
    return export_command(request.model, *words)


def _numbers(record: EvaluationRecord) -> dict[str, object]:
    """What an evaluation measured, for --json."""
    metrics = {name: asdict(metric) for name, metric in record.metrics.items()}
    removed = {"corpus": record.corpus["name"], "removed": record.plan.removed}
    increase = {"loss_increase": loss_increase(record)}
    full = {f"original_{name}": asdict(record.full[name]) for name in metrics if name == RIGHT}
    return {**removed, "tokens": record.num_tokens, **metrics, **full, **increase}


Against = Literal["removed", "bytes", "active_params", "expert_flops"]
AGAINST: tuple[Against, ...] = get_args(Against)


@command(SweepRequest)
def sweep(
    request: SweepRequest,
    *,
    out_file: options.OutTable = Path("sweep.csv"),
    figure: Annotated[
        options.OutFigure | None, Option("Draw the first measure too: .html, .svg, .png, .pdf.")
    ] = None,
    against: Annotated[Against, Option("What --figure has below.")] = "removed",
) -> None:
    """Evaluate every criterion at every sparsity, with one loaded model; writes a tidy table.

    Example: moeprune sweep demo --criterion reap --criterion random --sparsity 50% --calibrated-on
    demo-code --corpus demo-math --samples 8
    """
    records = follow(sweep_run(request))
    table = evaluation_table(records)
    show_sweep(records)
    write_table(table, out_file)
    if figure:
        draw(table, next(iter(records[0].metrics)), against, figure)
    of = counted(len(records), "evaluation")
    finish(
        f"{out_file}: {len(table)} rows of {of}",
        {"file": str(out_file), "rows": len(table), "evaluations": len(records)},
        command_line("report", request.model, *option_words(request, only=("revision",))),
    )


def draw(table: "pd.DataFrame", measure: str, against: str, path: Path) -> None:
    """Write the figure of one measure, and say in a sentence what it shows."""
    from app.charts.evaluation_curves import curves_figure, describe
    from app.charts.evaluations import pool_draws
    from app.charts.files import write_figure

    names = [
        (RANDOM.name if is_random(row["criterion"]) else row["criterion"])
        + variant_words(*(row[name] for name in VARIANT_COLUMNS))
        for row in table.to_dict("records")
    ]
    rows = pool_draws(table.assign(series=names, way="")[table["measure"] == measure])
    definition = MEASURES[measure]
    write_figure(curves_figure(rows, label=definition.axis, against=against), path)
    text = describe(rows, label=definition.label, higher_is_better=definition.higher_is_better)
    say(f"{path}: {text}")


def show_sweep(records: Sequence[EvaluationRecord]) -> None:
    """Print one table for each corpus: a row for each plan, a column for each measure.

    Several corpora have one more: the mean of what each plan adds to the loss.
    """
    measured = [name for name in MEASURES if any(name in each.metrics for each in records)]
    columns = ("criterion", "sparsity", *(MEASURES[name].label for name in measured))
    corpora = list(dict.fromkeys(str(each.corpus["name"]) for each in records))
    plans = len(records) // len(corpora)
    for number, corpus in enumerate(corpora):
        of_corpus = records[number * plans : (number + 1) * plans]
        cells = [
            (
                *_swept(each),
                *(mean_words(each.metrics.get(name), name) for name in measured),
                "-" if (more := loss_increase(each)) is None else f"{more:+z.4f}",
            )
            for each in of_corpus
        ]
        title = "\n" * (number > 0) + f"{corpus}, {of_corpus[0].settings['dtype']}"
        show_table(title, (*columns, "loss increase"), cells)
    if len(corpora) > 1:
        _show_means(records[:plans], _increases(records, plans), len(corpora))


def _show_means(
    plans: Sequence[EvaluationRecord], increases: Mapping[int, LossIncrease], corpora: int
) -> None:
    """Print what plans add to the loss over corpora: the smaller budget first, then the best."""
    if not increases:
        return
    budgets = list(dict.fromkeys(each.plan.sparsity for each in plans))
    order = sorted(
        increases,
        key=lambda number: (budgets.index(plans[number].plan.sparsity), increases[number].mean),
    )
    rows = [
        (
            *_swept(plans[number]),
            format_bytes(plans[number].plan.columns["bytes"]),
            f"{increases[number].mean:+z.4f}",
            f"{increases[number].worst:+z.4f}",
            increases[number].worst_on,
        )
        for number in order
    ]
    columns = ("criterion", "sparsity", "size", "mean", "worst", "worst on")
    show_table(f"\nLoss increase over {corpora} corpora, best first at each size", columns, rows)


def _swept(record: EvaluationRecord) -> tuple[str, str]:
    """The name of a plan of a sweep, and what it removes."""
    name = (record.plan.criterion or "original") + record.plan.variant_words
    return name, f"{record.plan.removed:.1%}"


@command(SubsetsRequest)
def subsets(request: SubsetsRequest, *, out_file: options.OutTable = Path("subsets.csv")) -> None:
    """Quality against calibration size: plans by parts of each run's tokens, and their spread.

    Example: moeprune subsets demo --criterion ean --sparsity 50% --calibrated-on demo-code
    --corpus demo-math --samples 8
    """
    table = subset_table(follow(subsets_run(request)))
    columns = ["corpus", "criterion", "calibrated_on", "repaired_on", "tokens"]
    summary = table.groupby(columns, sort=False)["increase"].agg(["mean", "min", "max", "count"])
    _show_subsets(f"loss increase at sparsity {request.sparsity}", summary.reset_index())
    write_table(table, out_file)
    finish(
        f"{out_file}: {counted(len(table), 'evaluation')}",
        {"file": str(out_file), "rows": len(table)},
        command_line("plot", "loss-by-tokens", request.model, "-o", "tokens.html"),
    )


def _show_subsets(title: str, summary: "pd.DataFrame") -> None:
    """Print a row for each share of tokens; what is empty or equal in all rows goes without."""
    names = {"calibrated_on": "ranked on", "repaired_on": "repaired on", "count": "plans"}
    same = [name for name in ("corpus", "repaired_on") if summary[name].nunique() == 1]
    corpora = summary["corpus"].unique()
    where = f" on {corpora[0]}" if len(corpora) == 1 else ""
    repaired = summary["repaired_on"].iloc[0] if "repaired_on" in same else ""
    how = f", repaired on {repaired}" if repaired else ""
    show_frame(f"{title}{where}{how}", summary.drop(columns=same).rename(columns=names))


_SHARES = (0.25, 0.5, 0.75)


@command(SensitivityRequest)
def sensitivity(request: SensitivityRequest) -> None:
    """Measure how much quality falls when experts are removed from one layer.

    Example: moeprune sensitivity demo --criterion reap --calibrated-on demo-code --corpus
    demo-math --sparsity 50% --samples 8
    """
    measurement = follow(sensitivity_run(request))
    for each in measurement.corpora:
        _say_curves(each, request)
    _say_rounds(measurement, request)
    if measurement.evaluations:
        tokens = max(each.plan.repair_tokens for each in measurement.evaluations)
        pairs = ((words, repaired_name(words, tokens)) for words in request.budget_words)
        plans = [name for pair in pairs for name in pair]
        show_records(measurement.evaluations, plans * len(request.corpora))
    names = (
        "granularity",
        "criterion",
        "gate",
        "cost",
        "across",
        "target_dtype",
        *LimitsSpec.model_fields,
    )
    flags = option_words(request, only=(*names, "revision", "stats_dir"))
    measured = request.corpora if len(request.corpora) > 1 else ()
    words = [*flags, *repeated("--calibrated-on", request.calibrated_on), "--schedule", "measured"]
    words += [*repeated("--measured-on", measured)]
    words += (request.budget_words or ["--sparsity 50%"])[0].split(" ", 1)
    count = len(measurement.corpora)
    finish(
        f"{count} {'corpus' if count == 1 else 'corpora'} measured",
        {"records": [each.record.record_id for each in measurement.corpora]},
        next_plan(request.model, *words),
    )


def _say_curves(measurement: Measured, request: SensitivityRequest) -> None:
    """Print what each layer alone bears, and what was run."""
    label, record = MEASURES[request.cost].label, measurement.record
    rows = []
    for (layer, size), curve in zip(record.layers, measurement.curves.layers, strict=True):
        shares = [curve.at(share * size) for share in _SHARES if share * size <= curve.removed[-1]]
        values = [f"{from_cost(request.cost, cost):.4f}" for cost in shares]
        values += [""] * (len(_SHARES) - len(values))
        most = f"{from_cost(request.cost, float(curve.costs[-1])):.4f}"
        rows.append((layer, size, *values, int(curve.removed[-1]), most))
    parts = "neurons" if request.granularity == "neuron" else "experts"
    columns = (
        "layer",
        parts,
        *(f"without {share:.0%}" for share in _SHARES),
        "most",
        "without most",
    )
    show_table(f"{label} on {record.corpus['name']} if one layer alone loses", columns, rows)
    out.print(
        f"{record.record_id}: {counted(len(record.points), 'allocation')} on "
        f"{measurement.curves.count.words}, "
        f"{measurement.layers / measurement.batches:.0f} layer evaluations in this run"
    )
    for share in () if request.budgets else _SHARES:
        units = measurement.units
        total = sum(units.nearest([int(share * size) for size in units.sizes]))
        spent = Sensitivity((measurement.curves,), request.cost).solution(units, total)
        value = from_cost(request.cost, spent.cost)
        out.print(f"{share:.0%}: predicted {label} {value:.4f}")


def _say_rounds(measurement: Measurement, request: SensitivityRequest) -> None:
    """Print what was predicted and measured of the plans that were asked for."""
    label, count = MEASURES[request.cost].label, len(measurement.corpora)
    where = f", {request.across} of {count} corpora" if count > 1 else ""
    for budget, rounds in measurement.rounds.items():
        for number, each in enumerate(rounds):
            which = "first plan" if number == 0 else f"refined {counted(number, 'time')}"
            predicted, measured = (
                from_cost(request.cost, cost) for cost in (each.predicted, each.cost)
            )
            out.print(
                f"{budget}, {which}: predicted {label} {predicted:.4f}, measured {measured:.4f}"
                f"{where}"
            )


Plans = tuple[Annotated[options.Plan, Option("plan.json to compare; repeatable.")], ...]


@command(VarianceRequest)
def variance(
    request: VarianceRequest, *, plan: Plans = (), out_file: options.OutTable = Path("variance.csv")
) -> None:
    """Variance of hidden states after each layer, original against pruned, on 4096 tokens.

    Example: moeprune variance demo --plan plan.json --corpus demo-math
    """
    full_request = request.into(VarianceRequest, **named_plans(request, plan))
    table = variance_table(follow(variance_run(full_request)))
    wide = table.pivot_table(index="layer", columns="model", values="variance", sort=False)
    show_frame("variance of hidden states", wide.rename(columns=_ORIGINAL).reset_index())
    write_table(table, out_file)
    tokens, last = int(table["num_tokens"].iloc[0]), wide.iloc[-1]
    model = load_model_index(request.model, revision=request.revision)
    finish(
        f"{out_file}: {tokens:,} tokens; after the last layer "
        + ", ".join(
            f"{value:.4g} ({_ORIGINAL.get(str(name), name)})" for name, value in last.items()
        ),
        {"file": str(out_file), "tokens": tokens, "last_layer": last.to_dict()},
        evaluate_command(request, model, {each: load_plan(each) for each in plan}, request.corpora),
    )


@command(BinsRequest)
def bins(request: BinsRequest, *, out_file: options.OutTable = Path("bins.csv")) -> None:
    """Score against true loss: experts or neurons in bins by saliency, each bin removed alone.

    Example: moeprune bins demo --criterion reap --calibrated-on demo-code --corpus demo-math
    --samples 4
    """
    table = follow(bins_run(request)).table
    first = "least salient first" if request.order == "saliency" else "by place"
    show_frame(f"each bin removed alone, {first}", table.drop(columns="pooled"))
    write_table(table, out_file)
    agreement = rank_agreement(table)
    model = load_model_index(request.model, revision=request.revision)
    neurons = ("--granularity", "neuron", "--shrink", "40%")
    budget = neurons if request.granularity == "neuron" else usual_budget(model)
    finish(
        f"{out_file}: rank correlation of saliency and loss {agreement:.2f} "
        "(1: the more salient, the more it costs)",
        {"file": str(out_file), "bins": len(table), "rank_correlation": agreement},
        plan_command(request, request.criterion, request.calibrated_on, budget),
    )


@command(AskRequest)
def ask(request: AskRequest, *, plan: Plans = ()) -> None:
    """Answers of the original model and of pruned ones to a prompt, or the losses of a text.

    Example: moeprune ask demo --plan plan.json --prompt 'A room is 7 m by 6 m. How large is it?'
    """
    full_request = request.into(AskRequest, **named_plans(request, plan))
    result = follow(ask_run(full_request))
    lines: list[str] = []
    values: dict[str, object] = {}
    if answers := result.answers:
        show_texts(
            {
                _ORIGINAL.get(answer.name, answer.name): answer.text.strip() or "(nothing)"
                for answer in answers
            }
        )
        lines = [
            f"{answer.name}: the first {answer.agreed} of {len(answer.ids)} tokens as the original "
            f"model, {answer.seconds:.1f} s"
            for answer in answers[1:]
        ] or [f"{len(answers[0].ids)} tokens, {answers[0].seconds:.1f} s"]
        values["answers"] = [asdict(answer) for answer in answers]
    if (lens := result.lens) is not None:
        lines.append(f"lens {lens.record_id}: {len(lens.losses)} tokens scored")
        lines += [
            f"{name}: {in_short(lens, each)}"
            for name, digest in result.plans.items()
            if (each := lens.of_plan(digest))
        ]
        values["lens"] = lens.to_dict()
    model = load_model_index(request.model, revision=request.revision)
    finish(
        "\n".join(lines),
        values,
        evaluate_command(request, model, {each: load_plan(each) for each in plan}),
    )
