"""The command `inspect`: what a checkpoint is and what can be pruned of it."""

from collections.abc import Sequence

from analysis.calibration.config_outline import outline_model
from analysis.families.base import HEAD_KEYS, MoELayer, SlotKind
from analysis.model.heads import prediction_heads
from analysis.model.hub_outline import hub_outline
from analysis.model.loadable import unloadable
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.model.outline import without_weights
from analysis.model.widths import expert_widths, loaded_widths
from app.cli.derive import command
from app.cli.say import cut_numbers, experts_in_words
from app.console import finish, out, show_facts, show_table
from pruning.plan.layer_words import ranges
from pruning.plan.sizes import BYTES, ModelPart, SizeReport, format_bytes, format_count, size_report
from pruning.planning.count_plan import CountPlan, uniform_cuts
from pruning.requests.following import WEIGHTS_ELSEWHERE, corpus_at_hand, usual_budget, with_weights
from pruning.requests.model import ModelRequest
from pruning.serving.engines import contents_of, verdicts
from pruning.spec.base import command_line, option_words
from pruning.spec.options import ConfigOnly
from pruning.surgery.source_checks import source_notes

_SHOWN = 6
_CUT_COLUMNS = ("sparsity", "experts per layer", "on disk", "saved", "parameters", "active")


def headers_or_outline(request: ModelRequest, *, config_only: bool) -> MoEModel:
    """A model by the headers of its weights; without weights by the hub's, or by config.json."""
    if not config_only:
        return load_model_index(request.model, revision=request.revision)
    if model := hub_outline(request.model, request.revision):
        return model
    return outline_model(request.model, revision=request.revision)


@command(ModelRequest)
def inspect(
    request: ModelRequest,
    *,
    config_only: ConfigOnly = False,
) -> None:
    """Show architecture, experts, sizes and what can be pruned; reads headers only.

    A hub model is downloaded whole; --config-only fetches its config.json and headers alone.

    Example: moeprune inspect demo
    """
    model = headers_or_outline(request, config_only=config_only)
    report, outline, cuts = size_report(model), without_weights(model), uniform_cuts(model)
    by = {"by": f"{outline.basis}; no weights were read"} if outline else {}
    caveats = (*(outline.caveats if outline else ()), *source_notes(model))
    show_facts({**_facts(model), **_numbers(report), **by})
    for line in (*caveats, *(f"assumed: {what}" for what in model.family.assumptions)):
        out.print(f"  {line}")
    show_table("\nUniform plans", _CUT_COLUMNS, [_cut_row(*cut) for cut in cuts])
    show_table("\nSize on disk", ("part", "bytes"), _part_rows(model, report))
    readers = [
        (verdict.engine, verdict.reads, verdict.reason) for verdict in verdicts(contents_of(model))
    ]
    show_table("\nCompatibility of the checkpoint as it is", ("program", "status", "why"), readers)
    finish(
        f"\n{_what_can_go(model.layers)}{_not_calibrated(model)}",
        {
            "parameters": report.params_before,
            "active_parameters": report.active_before,
            "bytes": report.bytes_before,
            "experts": report.experts_before,
            "layers": len(model.layers),
            "plans": [{"sparsity": share, **cut_numbers(cut)} for share, cut in cuts if cut],
            "caveats": caveats,
        },
        *_following(request, model),
    )


def _numbers(report: SizeReport) -> dict[str, str]:
    """Facts in numbers: what all of it has, and what a token uses."""
    stored_bytes, bfloat16_bytes = report.loaded()[0], report.loaded("bfloat16")[0]
    return {
        "parameters": f"{report.params_before:,}, {report.active_before:,} active per token",
        "loaded": f"{format_bytes(stored_bytes)} as stored, {format_bytes(bfloat16_bytes)} in "
        "bfloat16",
        "expert FLOPs per token": f"{report.expert_flops:,} (2 per weight of the chosen experts)",
    }


def _part_rows(model: MoEModel, report: SizeReport) -> list[tuple[str, str]]:
    """The bytes of each part of the checkpoint, and of a head that only exports have."""
    sizes = {str(part): int(size[BYTES]) for part, size in report.before.items()}
    rows = [(part, format_bytes(size)) for part, size in sizes.items() if size]
    if tied := model.tied_embedding:
        rows.append((str(ModelPart.TIED_HEAD), f"0 B, {format_bytes(tied.nbytes)} in exports"))
    return rows


def _not_calibrated(model: MoEModel) -> str:
    """What else works for a model that cannot be loaded; empty for others."""
    if not unloadable(model):
        return ""
    return (
        f" It cannot be calibrated, as {unloadable(model)}; moeprune export prunes it by a plan "
        "made for the model that was quantised (--plan-model)."
    )


def _following(request: ModelRequest, model: MoEModel) -> list[str]:
    """The next command, if there is one."""
    if unloadable(model):
        return []
    if without_weights(model) and with_weights(request.model) == WEIGHTS_ELSEWHERE:
        return [command_line("plan", request.model, "--config-only", *usual_budget(model))]
    words = ("--corpus", corpus_at_hand(request, model) or "CORPUS", "--dry-run")
    flags = option_words(request, only=("revision",))
    return [command_line("calibrate", request.model, *words, *flags)]


def _cut_row(share: str, cut: CountPlan | None) -> tuple[object, ...]:
    if cut is None:
        return (share, "the router needs more", *["-"] * 4)
    report = cut.report
    return (
        share,
        experts_in_words(cut.allocation.keep),
        format_bytes(report.bytes_after),
        f"{1 - report.bytes_after / report.bytes_before:.1%}",
        format_count(report.params_after),
        format_count(report.active_after),
    )


def _facts(model: MoEModel) -> dict[str, object]:
    counts = sorted({layer.num_experts for layer in model.layers})
    family, layer = model.family, model.layers[0]
    slots = [item.slot for layer in model.layers for item in model.located[layer.index]]
    routed = {slot.role for slot in slots if slot.kind is SlotKind.ROUTER}
    added = sorted(routed & set(family.correction_biases))
    facts = {
        "model": model.name,
        "architecture": f"{family.label} ({family.model_type})"
        + (", discovered: not in the table of families" if family.discovered else ""),
        "layers": _layers(model),
        "experts per layer": ", ".join(map(str, counts)),
        "experts per token": layer.top_k,
        "gate weights": family.gate_rule,
        "groups": f"{layer.num_groups}, each keeps as many" if layer.num_groups > 1 else "",
        # Terms that the router adds before it selects, and does not weight by.
        "correction bias": f"{', '.join(added)}; pruned with the router" if added else "",
        **_tables(model),
        "shared experts": _shared_experts(model),
        "layout": _layout(model),
        "prediction heads": _heads(model),
        "hidden size": model.hidden_size,
        "expert width": _width(model),
        "dtype": model.dtype,
        "shards": len(model.checkpoint.shards),
        # An outline's is of its configuration alone, and no checkpoint has it.
        "identity": "" if without_weights(model) else model.identity[:16],
    }
    return {name: value for name, value in facts.items() if value != ""}  # what it has


def _tables(model: MoEModel) -> dict[str, object]:
    """Layers whose routers look experts up by token id; nothing without any."""
    pairs = ((layer.index, model.located[layer.index]) for layer in model.layers)
    hashed = [index for index, tensors in pairs if any(item.slot.holds_ids for item in tensors)]
    if not hashed:
        return {}
    where = f"in layers {ranges(hashed)}"
    return {
        "tables of token ids": f"{where}; export renumbers them, and tokens of removed experts go "
        "to others"
    }


def _layers(model: MoEModel) -> str:
    sparse = {layer.index for layer in model.layers}
    dense = [index for index in range(model.depth) if index not in sparse]
    dense_ids = ", ".join(map(str, dense[:_SHOWN]))
    more = f" and {len(dense) - _SHOWN} more" if len(dense) > _SHOWN else ""
    without = f"; without: {dense_ids}{more}" if dense else ""
    return f"{model.depth}, {len(sparse)} with experts{without}"


def _width(model: MoEModel) -> str:
    """Neurons of an expert, on disk, and of the experts of a layer when loaded."""
    widths = {width for expert_width in expert_widths(model).values() for width in expert_width}
    if not widths:  # quantised in blocks, whose shapes do not say
        return str(model.config.get(model.family.width_key, "unknown"))
    least, most = min(widths), max(widths)
    on_disk = str(most) if least == most else f"{least} to {most} on disk"
    loaded = set((loaded_widths(model) or {}).values()) - widths
    return on_disk + (f", {min(loaded)} to {max(loaded)} when loaded" if loaded else "")


def _shared_experts(model: MoEModel) -> str:
    shared, config = model.family.shared, model.config
    width = config.get(shared.width_key) if shared else None
    count = config.get(shared.count_key, 0) if shared and shared.count_key else 1
    if shared is None or not width or not count:
        return ""
    number = count[0] if isinstance(count, list) else count
    total = f"of width {width}" + (" each" if shared.width_is_each and number > 1 else "")
    return f"{number} {total}; never scored or pruned" + (f"; {shared.note}" if shared.note else "")


def _layout(model: MoEModel) -> str:
    slots = [item.slot for item in model.located[model.layers[0].index]]
    experts = [slot for slot in slots if slot.kind is not SlotKind.ROUTER]
    if any(slot.kind is SlotKind.EXPERT for slot in experts):
        layout = "one tensor per expert and projection"
    else:
        layout = "one tensor per projection, all experts stacked"
        layout += ", transposed" if model.family.is_transposed else ""
    extra = sorted({slot.role for slot in experts} - {"weight", "bias"})
    return layout + (f"; quantised ({', '.join(extra)})" if extra else "")


def _heads(model: MoEModel) -> str:
    """Heads for multi-token prediction, and what an export does with them."""
    heads = prediction_heads(model)
    entries = [f"{key} = {n}" for key in HEAD_KEYS if (n := model.config.get(key))]
    if not heads:
        return f"none here, so not counted, but config.json says {entries[0]}" if entries else ""
    has_experts = any(head.has_experts for head in heads)
    what = "with experts; export drops" if has_experts else "without experts; export keeps"
    names = ", ".join(head.name for head in heads)
    return f"{names}, {what} them unless asked otherwise (--mtp)"


def _what_can_go(layers: Sequence[MoELayer]) -> str:
    layer = layers[0]
    spare = sum(layer.num_experts - layer.least_kept for layer in layers)
    most = spare / sum(layer.num_experts for layer in layers)
    message = f"Whole experts can be pruned up to a sparsity of {most:.4g}: each router "
    if layer.num_groups > 1:
        return message + (
            f"chooses among {layer.num_groups} groups and picks {layer.top_k} experts per token, "
            f"so each group must keep {layer.least_per_group} or more and all as many: numbers "
            f"kept are multiples of {layer.num_groups}."
        )
    return (
        f"{message}picks {layer.top_k} experts per token, so at least {layer.least_kept} must stay."
    )
