"""What several commands print: where numbers come from, what plans keep, what was measured."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from analysis.errors import ExportError
from analysis.files.shipped import DEMO_MODEL
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.model.outline import without_weights
from analysis.numbers.words import plain_rows
from analysis.ranking.choose import Choice
from analysis.stats.manifest import COUNTS_ALONE, Run
from app.console import finish, note, note_command, out, ranges_of_rows, show_table
from pruning.plan.active import Routing
from pruning.plan.bit_sizes import fits_k_types
from pruning.plan.bits import FORMATS
from pruning.plan.experts_per_token import is_written, top_k_words
from pruning.plan.kept_neurons import count_neurons
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
from pruning.requests.following import commands_after_checks, with_weights
from pruning.requests.plan import SpecRequest
from pruning.serving.commands import LLAMA_CPP, serve_commands, serve_gguf, served_by
from pruning.serving.engines import contents_of, equal_cut, summary, verdicts
from pruning.serving.gguf import gguf_path
from pruning.serving.tensor_types import REST, quantise_command, tensor_types
from pruning.spec.base import command_line, option_words
from pruning.surgery.manifest import read_manifest
from pruning.surgery.padding import plan_padding
from pruning.surgery.width_sizes import width_options

_ADDED = ("experts", "kept", "removed", "neurons", "stay", "empty", "pinned", "dropped")
_UNQUANTISED: Final = ("bf16", "f16", "f32")  # types of --gguf
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
        f"{path}: keeps {report.experts_after} of {report.experts_before} experts "
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
        f"{model.name}: {report.experts_after} of {report.experts_before} experts ({count} of "
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
    finish(words, cut_numbers(cut), *(() if model.unloadable else (following,)))


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


def say_export(
    model: MoEModel, folder: Path, result: Mapping[str, Any], stats_dir: Path | None
) -> None:
    """Print what an export took and saves, and its verification where there was one."""
    before = sum(shard.size for shard in model.checkpoint.shards)
    manifest = read_manifest(folder)
    exported = load_model_index(str(folder))
    after, contents = manifest.nbytes, contents_of(exported)
    if result["heads"]:
        note(f"Prediction heads (MTP): {result['heads']}")
    if result["repair"]:
        note(f"Repair: {result['repair']}.")
    if manifest.padded:
        added = plan_padding(model, manifest.plan).in_words
        note(f"Filled up so that every layer has as many: {added}")
    removes = equal_cut(manifest.plan, padded=manifest.padded)
    found = verdicts(replace(contents, removes=removes))
    note(summary(found))
    bits = {int(layer): bits for layer, bits in result.get("bits_by_layer", {}).items()}
    served = served_by(found, str(folder), exported.dtype, tried_only=True, bits_by_layer=bits)
    serving = serve_commands(served)
    if any(engine.verdict.engine == LLAMA_CPP for engine in served):
        say_notes(_bits_words(exported, bits))
    for line in serving:
        note_command(line)
    numbers = {**result, "folder": str(folder), "serve": serving}
    numbers |= {"file_bytes_before": before, "file_bytes_after": after}
    checked = result.get("verify")
    source = str(model.checkpoint.path) if model.name != DEMO_MODEL else DEMO_MODEL
    # Verification reads the repair's files.
    place = ("--stats-dir", str(stats_dir)) if result["repair"] and stats_dir else ()
    verify = command_line("verify", str(folder), "--source", source, *place)
    following = () if checked else (verify,)
    files = f"files with headers {less_in_words(before, after)}"
    warn_of_growth(before, after)
    words = f"{folder}: {files}, plan {result['plan_digest'][:8]}"
    finish(words, numbers, *following)
    if checked:
        report_checks(folder, checked)


def say_gguf(folder: Path, result: Mapping[str, Any]) -> None:
    """Print what the GGUF file of an export is, if it was asked for."""
    if (record := result.get("gguf")) is None:
        return
    path, kind = gguf_path(folder, record["type"]), record["type"]
    words = f"{path}: {format_bytes(record['bytes'])}, by the converter of {record['converter']}"
    bits = {int(layer): bits for layer, bits in result.get("bits_by_layer", {}).items()}
    if kind in _UNQUANTISED and (types := tensor_types(bits, kind)):
        small = gguf_path(folder, "by-layer")
        lines = [quantise_command(types, path, small), serve_gguf(small)]
    else:
        lines = [serve_gguf(path)]
    finish(words, {"gguf": record}, *lines)


def _bits_words(exported: MoEModel, bits: Mapping[int, str]) -> Iterator[str]:
    """What llama.cpp makes of the bits of a plan, which the export itself has not."""
    if not bits:
        return
    yield (
        f"the export has the weights as they are; llama-quantize gives its experts their bits, and "
        f"all else {REST}"
    )
    types = {FORMATS[name].tensor_type for name in bits.values() if name in FORMATS}
    if any("_k" in name for name in types) and not fits_k_types(exported):
        yield "types of K need rows of 256 weights: llama-quantize takes larger ones here"


def say_recipe(result: Mapping[str, Any]) -> None:
    """Print what was written for llm-compressor, if it was asked for."""
    if (record := result.get("recipe")) is None:
        return
    on = f", {record['tokens']:,} tokens to calibrate on" if record["rows"] else ""
    words = f"{record['script']}: llm-compressor's recipe for {record['scheme']}{on}"
    finish(words, {"recipe": record}, record["command"])


def report_checks(folder: Path, report: Mapping[str, Any], *, has_source: bool = True) -> None:
    """Print the checks of a verification; raises an ExportError where one failed."""
    first, *others = report["checks"]
    if not others and not first["ok"]:
        raise ExportError(first["detail"])  # no export, of which there is nothing to tell
    rows = [(check["name"], check["ok"], check["detail"]) for check in report["checks"]]
    show_table(f"{folder}: level {report['level']}", ("check", "ok", "detail"), rows)
    note(report["reason"])
    failed = [check for check in report["checks"] if not check["ok"]]
    result = {"verified": not failed, "level": str(report["level"]), "checks": len(rows)}
    result["compared_with_source"] = has_source
    following = () if failed else commands_after_checks(folder)
    words = f"{len(failed)} of {len(rows)} checks failed" if failed else f"all {len(rows)} checks"
    if not has_source:
        words += "; bytes were not compared with the original model: give --source MODEL"
    finish(f"{'FAIL' if failed else 'PASS'}: {folder}, {words}", result, *following)
    if failed:
        raise ExportError(f"{folder} fails: {failed[0]['name']}: {failed[0]['detail']}")
