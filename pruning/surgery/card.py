"""The model card of an export: what was removed, by which criterion, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import metadata_load

from analysis.errors import ExportError, first_line
from analysis.files.shipped import tool_version
from analysis.foreign_text import fenced, in_markdown
from analysis.model.moe_model import MoEModel
from pruning.plan.heads import HeadChoice, HeadPlan, heads_in_words
from pruning.plan.kept import count_neurons
from pruning.plan.layer_words import ranges
from pruning.plan.plan import PruningPlan
from pruning.plan.size_words import growth_words
from pruning.plan.sizes import SizeReport, format_bytes, size_report
from pruning.plan.widths import WidthPlan
from pruning.serving.commands import serve_commands, served_by
from pruning.serving.engines import contents_of, load_code, verdicts
from pruning.surgery.dequantising import BF16
from pruning.surgery.padding import Padding
from pruning.surgery.source_checks import left_behind, missing_files
from pruning.surgery.width_sizes import option_with_sizes

if TYPE_CHECKING:
    from pruning.records.cost import PlanCost
    from pruning.records.verdict import ShipVerdict

CARD_NAME = "README.md"


class LayerOutcome(Protocol):
    """How the down projections of a layer were refitted."""

    @property
    def layer(self) -> int:
        """Its decoder index."""

    @property
    def left(self) -> float | None:
        """Squared error left on held-out sequences, a share of that without; None: unchanged."""


class StoredRepair(Protocol):
    """What an export says of a repair; `pruning.records.repair` has the whole record."""

    @property
    def record_id(self) -> str:
        """As the plan names it."""

    @property
    def outcome(self) -> str:
        """What it was fitted on and what is left to lack."""

    @property
    def layers(self) -> Sequence[LayerOutcome]:
        """By layer, how it went."""

    @property
    def files(self) -> Mapping[str, str]:
        """Name -> SHA-256 of its bytes."""


def source_metadata(path: Path) -> Mapping[str, Any]:
    """The metadata of the source's own card; empty without one."""
    card = path / CARD_NAME
    if not card.is_file():
        return {}
    try:
        return metadata_load(card) or {}
    except (ValueError, yaml.YAMLError) as error:
        reason = first_line(error)
        raise ExportError(
            f"The metadata of {card} cannot be read ({reason}), so the licence is not known; "
            "correct the file or move it away."
        ) from error


def _kept_table(model: MoEModel, plan: PruningPlan) -> str:
    lines = ["| layers | experts kept | of |", "|---|---|---|"]
    rows = [(layer.index, len(plan.kept[layer.index]), layer.num_experts) for layer in model.layers]
    for (keep, count), group in groupby(rows, key=lambda row: row[1:]):
        indices = [row[0] for row in group]
        # Dense layers are not listed, so neighbours may skip an index.
        layers = str(indices[0]) if len(indices) == 1 else f"{indices[0]} to {indices[-1]}"
        lines.append(f"| {layers} ({len(indices)} sparse) | {keep} | {count} |")
    return "\n".join(lines)


def _facts(
    model: MoEModel,
    plan: PruningPlan,
    heads: str,
    sizes: SizeReport,
    repair: StoredRepair | None,
) -> str:
    provenance = plan.provenance
    share = sizes.experts_removed / sizes.experts_before
    assumed = "; ".join(model.family.assumptions)
    copied = f"a copy of the embedding, {sizes.copied:,} parameters"
    renumbered = [  # layers whose routers look experts up by token id, and that lose some
        layer.index
        for layer in model.layers
        if len(plan.kept[layer.index]) < layer.num_experts
        and any(item.slot.holds_ids for item in model.located[layer.index])
    ]
    tables = f"renumbered in layers {ranges(renumbered)}"
    others = "their tokens of removed experts go to others, spread evenly"
    own = max(layer.top_k for layer in model.layers)
    facts = {
        "Criterion": provenance.criterion,
        "Gate weights": provenance.gate,
        "Calibration corpus": ", ".join(provenance.corpora),
        "Rows of the corpora": _in_words(provenance.rows),
        "Repair": repair and f"{repair.record_id}, {repair.outcome}",
        "Schedule": provenance.schedule,
        "Sparsity asked for": provenance.sparsity,
        "Budget": _in_words(provenance.budget),
        "Schedule's parameters": _in_words(provenance.schedule_parameters),
        "Constraints": _in_words(provenance.constraints),
        "Experts per token": plan.per_token and f"{plan.per_token} instead of {own}",
        "Experts removed": f"{sizes.experts_removed} of {sizes.experts_before} ({share:.1%})",
        "Source identity": model.identity,
        "Calibration runs": ", ".join(provenance.runs),
        "Plan digest": plan.digest,
        "Program": f"MoE Prune Studio {tool_version()}",
        "Prediction heads (MTP)": heads,
        "Files of the source that are not here": "; ".join(left_behind(model)),
        "Files that the source lacks": "; ".join(missing_files(model)),
        "Tables of token ids": renumbered and f"{tables}; {others}",
        "Output head": sizes.copied and f"{copied}, counted once below and twice in bytes",
        "Architecture": assumed and f"discovered from the checkpoint, assuming that {assumed}",
    }
    return "\n".join(f"- {name}: {in_markdown(value)}" for name, value in facts.items() if value)


def _verdict_part(verdict: ShipVerdict) -> str:
    reasons = "\n".join(f"- {in_markdown(line)}" for line in verdict.lines)
    return _VERDICT.format(headline=in_markdown(verdict.headline), reasons=reasons)


def _cost_part(cost: PlanCost) -> str:
    rows = (
        f"| {in_markdown(row.name)} | {_number(row.full, '.2f')} | {_number(row.plan, '+z.2f')} | "
        f"{_number(row.random, '+z.2f')} |"
        for row in cost.rows
    )
    samples = cost.loss.count.words if cost.loss else ""
    table = _LOSSES.format(rows="\n".join(rows), samples=samples) if cost.rows else ""
    right = "".join(f"- {in_markdown(f'{row.corpus}: {row.words}')}\n" for row in cost.right)
    if right:
        table += f"Right answers, by the check of each corpus:\n\n{right}\n"
    return _COST.format(verdict=in_markdown(cost.verdict), table=table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _repair_part(repair: StoredRepair) -> str:
    rows = (
        f"| {fit.layer} | {'unchanged' if fit.left is None else f'{fit.left:.1%}'} |"
        for fit in repair.layers
    )
    return _REPAIR.format(rows="\n".join(rows))


def _filling_facts(
    model: MoEModel, plan: PruningPlan, widths: WidthPlan | None, padding: Padding | None
) -> list[str]:
    """Neurons removed, and what zeros fill up: experts that lost some, layers that lost more."""
    facts = []
    if padding:
        added = f"{padding.experts} experts of zeros, which no router can choose"
        facts = [f"- Padding: {added}, {format_bytes(padding.nbytes)} more on disk and in memory"]
    if not (plan.kept_neurons and widths):
        return facts
    kept, of = count_neurons(plan.kept_neurons, plan.kept, model)
    option = option_with_sizes(model, plan, widths)
    least, most = option.widths
    width = f"{most}" if least == most else f"{least} to {most}"
    disk, loaded = format_bytes(option.disk_bytes), format_bytes(option.loaded_bytes)
    return [
        f"- Neurons removed: {of - kept:,} of {of:,} ({1 - kept / of:.1%})",
        f"- Widths: {option.mode}, {width} when loaded; filled up with neurons that are zero",
        f"- With those zeros: {disk} on disk, {loaded} when loaded in the same types",
        *facts,
    ]


def _in_words(values: Mapping[str, Any]) -> str:
    """JSON on one line; empty for nothing."""
    return json.dumps(values, sort_keys=True) if values else ""


_CARD = """---
{metadata}
---

# {model}, pruned

{model} ({family}) with some of {what} removed. The remaining weights are those of the
source, byte for byte{repair}; nothing was trained afterwards.
{licence}
## What was removed

{kept}

{facts}

| | before | after |
|---|---|---|
| parameters | {sizes.params_before:,} | {sizes.params_after:,} |
| active per token | {sizes.active_before:,} | {sizes.active_after:,} |
| weights on disk | {on_disk} |
| loaded in bfloat16 | {loaded} |

The ids of the kept experts and the SHA-256 of every file are in `moeprune_manifest.json`.

{cost}{repaired}## How to load it

{code}

| program | status | why |
|---|---|---|
{readers}
{serving}{recipe}"""
_SERVING = """
## How to serve it

Commands of one engine, up to the next comment:

{commands}
"""
_VERDICT = """## May it be shipped

**{headline}**, by what was recorded when it was written:

{reasons}

"""
_COST = """## What it costs

{verdict}

{table}"""
_LOSSES = """Loss in nats per token, of the original model and what is added to it, on {samples} or
more of each corpus:

| text | original | this plan adds | Random adds |
|---|---|---|---|
{rows}

"""
_REPAIR = """## How the kept experts were repaired

Their down projections were refitted in closed form, layer by layer, so that the output follows the
source's. What the outputs then lack on held-out sequences, squared, as a share of what they lacked:

| layer | left |
|---|---|
{rows}

"""
_RECIPE = """
## Recipe

{recipe}
"""
_PLACE = "path/to/this/folder"
_FOLDER = f'"{_PLACE}"  # or its id on the hub'
_NO_LICENCE = """
The source's card names no licence; look it up before you share this model.
"""


def _metadata(model: MoEModel, source: Mapping[str, Any]) -> ModelCardData:
    """The head of the card; `source` is that of the model's own."""
    is_hub_id = model.name.count("/") == 1
    licence = ("license", "license_name", "license_link")
    return ModelCardData(
        base_model=source.get("base_model") or (model.name if is_hub_id else None),
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["moe", "pruned", "expert-pruning"],
        **{key: source[key] for key in licence if source.get(key)},
    )


def model_card(  # noqa: PLR0913
    model: MoEModel,
    plan: PruningPlan,
    heads: HeadPlan,
    recipe: str = "",
    widths: WidthPlan | None = None,
    padding: Padding | None = None,
    repair: StoredRepair | None = None,
    cost: PlanCost | None = None,
    num_bytes: int | None = None,
    in_bf16: bool = False,
    heads_ranked_by: str = "",
    verdict: ShipVerdict | None = None,
) -> bytes:
    """The README.md of an export, reproducible as it does not name the folder.

    The plan is complete, see `fit_plan`; `recipe` is the text of the export's recipe; `cost` is
    there if plans of it were measured, `verdict` is that on the export; `num_bytes` are those of
    the weights that it writes, None for those of the plan; `in_bf16`: FP8 of the source is in BF16.
    """
    source, sizes = source_metadata(model.checkpoint.path), size_report(model, plan)
    keeps = heads.choice is not HeadChoice.DROP
    contents = contents_of(model, plan, widths, padded=padding is not None, keeps_heads=keeps)
    if in_bf16:
        contents = contents.dequantised()
    found = verdicts(contents)
    readers = (
        f"| {reader.engine} | {reader.reads} | {in_markdown(reader.reason)} |" for reader in found
    )
    serving = serve_commands(served_by(found, _PLACE, BF16 if in_bf16 else model.dtype))
    before, after = model.checkpoint.nbytes, sizes.bytes_after if num_bytes is None else num_bytes
    growth = growth_words(before, after)
    text = _CARD.format(
        metadata=_metadata(model, source).to_yaml(),
        model=in_markdown(model.name),
        family=in_markdown(model.family.label),
        licence="" if source.get("license") else _NO_LICENCE,
        kept=_kept_table(model, plan),
        code=fenced(load_code(model, contents, _FOLDER), "python"),
        readers="\n".join(readers),
        serving=_SERVING.format(commands=fenced("\n".join(serving), "bash")) if serving else "",
        repair=", with FP8 written in bfloat16" * in_bf16
        + ", except the down projections of experts, which were refitted" * bool(repair),
        cost=(_verdict_part(verdict) if verdict else "") + (_cost_part(cost) if cost else ""),
        repaired=_repair_part(repair) if repair else "",
        what="neurons of its routed experts" if plan.kept_neurons else "its routed experts",
        facts="\n".join(
            (
                _facts(model, plan, heads_in_words(model, heads, heads_ranked_by), sizes, repair),
                *_filling_facts(model, plan, widths, padding),
                *([f"- Weights on disk: {growth}"] if growth else []),
            )
        ),
        sizes=sizes,
        on_disk=" | ".join(map(format_bytes, (before, after))),
        loaded=" | ".join(map(format_bytes, sizes.loaded("bfloat16"))),
        recipe=_RECIPE.format(recipe=fenced(recipe, "yaml")) if recipe else "",
    )
    return str(ModelCard(text).content).encode()
