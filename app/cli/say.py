"""What several commands print: where numbers come from, what plans keep, what was measured."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analysis.lazy import pd
from analysis.model.loadable import unloadable
from analysis.model.moe_model import MoEModel
from analysis.model.outline import without_weights
from analysis.numbers.words import plain_rows
from analysis.ranking.choose import Choice
from analysis.stats.manifest import COUNTS_ALONE, Run
from app.console import finish, note, out, ranges_of_rows, show_table
from pruning.plan.expert_sizes import Routing
from pruning.plan.experts_per_token import is_written, top_k_words
from pruning.plan.kept import count_neurons
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, fit_plan
from pruning.plan.size_words import growth_words, less_in_words
from pruning.plan.sizes import (
    SizeReport,
    format_bytes,
    format_count,
    neuron_plan_sizes,
    size_report,
)
from pruning.plan.tables import plan_summary
from pruning.plan.widths import WidthChoice
from pruning.planning.count_plan import CountPlan
from pruning.requests.following import with_weights
from pruning.requests.plan import SpecRequest
from pruning.spec.base import command_line, option_words
from pruning.surgery.width_sizes import width_options

_ADDED = ("experts", "kept", "removed", "neurons", "stay", "empty", "pinned", "dropped")
_RARE = ("pinned", "dropped", "held", "empty")
_WIDTH_COLUMNS = (
    *("width mode", "parameters", "on disk", "loaded", "active", "expert FLOPs", "width"),
    *("read by", "note"),
)


def say_notes(notes: Iterable[str]) -> None:
    """Print what a person should know of a result."""
    for text in notes:
        note(text)


def say_sources(runs: Iterable[Run], notes: Iterable[str] = ()) -> None:
    """Print these runs, and what a person should know of their choice."""
    for run in runs:
        tokens = f", {run.manifest.num_tokens:,} tokens" if run.manifest.num_tokens else ""
        of_traffic = run.manifest.kind == COUNTS_ALONE
        how = "counts of traffic" if of_traffic else run.manifest.settings["dtype"]
        note(f"from {run.manifest.run_id}{tokens}, {how}")
    say_notes(notes)


def say_choice(choice: Choice[Any]) -> None:
    """Print which runs the numbers come from, and why these where there are others."""
    say_sources(choice.runs, choice.notes)


_ASKED = {"size": "asked: {}", "shrink": "asked: -{}", "params": "asked: {} of all parameters"}


def say_plan(model: MoEModel, plan: PruningPlan, path: Path, *following: str) -> None:
    """Print what a plan keeps, in one line; of experts layer by layer where layers differ.

    `following` are the commands that come next.
    """
    report, budget = size_report(model, plan), plan.provenance.budget
    target = _ASKED.get(str(budget.get("kind")), "").format(budget.get("asked"))
    result = {"file": str(path), "digest": plan.digest, **_sizes(report)}
    if is_written(plan.top_k, model.family):
        warn_of_growth(report.bytes_before, report.bytes_after)
    fewer = top_k_words(plan.per_token)
    if plan.granularity == NEURON_GRANULARITY:
        kept, of = count_neurons(plan.kept_neurons, plan.kept, model)
        words = f"{path}: keeps {kept} of {of} neurons ({1 - kept / of:.2%} sparsity)"
        words += f"{fewer}, {target}" if target else fewer
        result |= {"neurons_before": of, "neurons_after": kept}
        finish(f"{words}, digest {plan.digest[:8]}", result, *following)
        return
    summary = plan_summary(plan, model)
    counts = {layer: len(ids) for layer, ids in fit_plan(plan, model).kept.items()}
    if len(set(counts.values())) > 1 or plan.provenance.constraints or "top_k" in summary:
        show_summary(summary, "")
    count, sizes = (experts_in_words(numbers) for numbers in (counts.values(), summary["experts"]))
    words = (
        f"{path}: keeps {report.experts_after:,} of {report.experts_before:,} experts "
        f"({count} of {sizes} per layer), {_change(report, target)}"
        f"{fewer}, {per_token_in_words(report)}, digest {plan.digest[:8]}"
    )
    finish(words, {**result, "kept_per_layer": counts}, *following)


def experts_in_words(counts: Iterable[int]) -> str:
    """Numbers of layers: 17, or 12 to 20."""
    numbers = sorted(set(map(int, counts)))
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def per_token_in_words(report: SizeReport) -> str:
    """Parameters that a token uses, before and after where the plan changes them."""
    before, after = map(format_count, (report.active_before, report.active_after))
    words = after if before == after else f"{before} -> {after}"
    return f"{words} parameters per token"


def _change(report: SizeReport, target: str) -> str:
    return less_in_words(report.bytes_before, report.bytes_after, target)


def warn_of_growth(before: int, after: int) -> None:
    """Say in one line that an export is larger than its source, if it is."""
    if growth := growth_words(before, after):
        note(f"warning: the export is {growth}")


def say_counted(model: MoEModel, cut: CountPlan, request: SpecRequest) -> None:
    """Print what a plan would keep and save, for a model without weights; nothing is chosen."""
    outline = without_weights(model)
    note(
        f"no weights here: counts and sizes by {outline.basis if outline else ''}, no expert chosen"
    )
    say_notes(cut.notes)
    allocation, report = cut.allocation, cut.report
    layers = list(zip(allocation.layers, allocation.keep, strict=True))
    if len(set(allocation.keep)) > 1:
        rows = [(layer.index, layer.num_experts, keep) for layer, keep in layers]
        show_table("", ("layer", "experts", "kept"), ranges_of_rows(rows))
    target = request.plan.budget.size_target
    target_words = _ASKED[target.kind].format(target.in_words) if target else ""
    count = experts_in_words(allocation.keep)
    sizes = experts_in_words(layer.num_experts for layer in allocation.layers)
    words = (
        f"{model.name}: {report.experts_after:,} of {report.experts_before:,} experts ({count} of "
        f"{sizes} per layer) would stay, {_change(report, target_words)}, "
        f"{format_count(report.params_after)} of {format_count(report.params_before)} parameters, "
        f"{format_count(report.active_after)} per token"
    )
    following = command_line(
        "calibrate",
        with_weights(request.model),
        *("--corpus", "CORPUS", "--dry-run"),
        *option_words(request, only=("revision",)),
    )
    finish(words, cut_numbers(cut), *(() if unloadable(model) else (following,)))


def cut_numbers(cut: CountPlan) -> dict[str, object]:
    """The numbers of a plan that chooses no experts, for --json."""
    return {**_sizes(cut.report), "kept_per_layer": cut.allocation.counts}


def _sizes(report: SizeReport) -> dict[str, object]:
    """The numbers of a plan, for --json."""
    return {
        "experts_before": report.experts_before,
        "experts_after": report.experts_after,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "params_before": report.params_before,
        "params_after": report.params_after,
        "active_params_before": report.active_before,
        "active_params_after": report.active_after,
    }


def show_summary(summary: "pd.DataFrame", title: str) -> None:
    """Print a summary of either granularity, with a line for all layers."""
    totals = {name: int(summary[name].sum()) for name in _ADDED if name in summary}
    size_column, kept_column = ("neurons", "stay") if "neurons" in totals else ("experts", "kept")
    last: dict[str, object] = {
        "layer": "all",
        **totals,
        "share": 1 - totals[kept_column] / totals[size_column],
    }
    if "mean" in summary:
        mean = (summary["mean"] * summary["kept"]).sum() / summary["kept"].sum()
        least, most = int(summary["least"].min()), int(summary["most"].max())
        last |= {"least": least, "mean": mean, "most": most}
    # Constraints are a column where there are some.
    rare = [name for name in _RARE if name in summary and not summary[name].any()]
    summary = summary.drop(columns=rare)
    rows = [*ranges_of_rows(plain_rows(summary)), [last.get(name, "") for name in summary.columns]]
    show_table(title, tuple(summary.columns), rows)


def show_width_options(
    model: MoEModel, plan: PruningPlan, choice: WidthChoice, routing: Routing | None = None
) -> None:
    """Print, for a plan that removes neurons, what each width mode saves; nothing is written.

    Where the mode of `choice` saves little and another does not, that is said. Widths are rounded
    up to its multiple; without `routing`, each expert is taken to be chosen equally often.
    """
    table = neuron_plan_sizes(model, plan, choice.multiple_of, routing)
    sizes = {row["mode"]: row for row in table.to_dict("records")}
    report, checkpoint = size_report(model, plan, routing), model.checkpoint
    # With headers, as the modes' rows below: nobody should read a saving or a loss from those.
    on_disk = sum(shard.size for shard in checkpoint.shards)
    sizes_before = (report.params_before, format_bytes(on_disk), format_bytes(checkpoint.nbytes))
    before = (*sizes_before, report.active_before, report.expert_flops)
    rows: list[tuple[object, ...]] = [("as it is", *before, "", "", "")]
    options = width_options(model, plan, choice.multiple_of)
    for option in options:
        mode = str(option.mode)
        if option.refused:
            rows.append((mode, *["-"] * 5, "", "", option.refused))
            continue
        size_row, (least, most) = sizes[mode], option.widths
        row = (
            mode,
            int(size_row["params"]),
            format_bytes(option.disk_bytes),
            format_bytes(option.loaded_bytes),
            int(size_row["active"]),
            int(size_row["expert_flops"]),
            str(most) if least == most else f"{least} to {most}",
            "every reader" if option.stock else "load_pruned, trust_remote_code",
            f"{option.shared} shared experts" if option.shared is not None else "",
        )
        rows.append(row)
    show_table("Width modes", _WIDTH_COLUMNS, rows)
    how = "by the routing of the runs" if report.is_measured else "if each is chosen equally often"
    out.print(
        f"Without zeros that fill experts up a token uses {report.active_after:,} parameters and "
        f"{report.expert_flops_after:,} FLOPs of experts "
        f"({1 - report.expert_flops_after / report.expert_flops:.2%} fewer), {how}."
    )
    possible = {option.mode: option.disk_bytes for option in options if not option.refused}
    best = min(possible, key=possible.__getitem__, default=choice.mode)
    chosen_bytes = possible.get(choice.mode, on_disk)
    if report.params_after < report.params_before and on_disk <= possible.get(best, on_disk):
        note(
            "padding takes all that is saved, in every width mode: plan with --neuron-scope "
            "expert, or remove more"
        )
    elif on_disk - chosen_bytes < (on_disk - possible.get(best, on_disk)) / 2:
        note(
            f"padding takes what is saved: {less_in_words(on_disk, chosen_bytes)} in --width-mode "
            f"{choice.mode}; {less_in_words(on_disk, possible[best])} with --width-mode {best}, "
            "which load_pruned loads"
        )
