"""The model card of an export: what was removed, by which criterion, and how to load it."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import metadata_load

from analysis.errors import ExportError
from analysis.model import MoEModel
from pruning.plan import PruningPlan
from pruning.sizes import format_bytes, size_report

CARD_NAME = "README.md"
_LICENSE_KEYS = ("license", "license_name", "license_link")


def source_metadata(path: Path) -> Mapping[str, Any]:
    """The metadata of the source's own card; empty where it has none.

    Raises:
        ExportError: there is a card, but its metadata cannot be read, so neither can its licence.
    """
    card = path / CARD_NAME
    if not card.is_file():
        return {}
    try:
        return metadata_load(card) or {}
    except (ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise ExportError(
            f"The metadata of {card} cannot be read ({reason}), so its licence is not known; "
            "correct the file or move it away."
        ) from error


def _card_data(model: MoEModel, source: Mapping[str, Any]) -> ModelCardData:
    is_hub_id = model.name.count("/") == 1
    return ModelCardData(
        base_model=source.get("base_model") or (model.name if is_hub_id else None),
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["moe", "pruned", "expert-pruning"],
        **{key: source[key] for key in _LICENSE_KEYS if source.get(key)},
    )


def _kept_table(model: MoEModel, plan: PruningPlan) -> str:
    lines = ["| layers | experts kept | of |", "|---|---|---|"]
    rows = [(layer.index, len(plan.kept[layer.index]), layer.num_experts) for layer in model.layers]
    for (keep, count), group in groupby(rows, key=lambda row: row[1:]):
        indices = [row[0] for row in group]
        # Dense layers between are not named, so neighbours in the list may skip an index.
        layers = str(indices[0]) if len(indices) == 1 else f"{indices[0]} to {indices[-1]}"
        lines.append(f"| {layers} ({len(indices)} sparse) | {keep} | {count} |")
    return "\n".join(lines)


def _facts(model: MoEModel, plan: PruningPlan) -> str:
    sizes, made = size_report(model, plan), plan.provenance
    share = sizes.experts_removed / sizes.experts_before
    before, after = format_bytes(sizes.bytes_before), format_bytes(sizes.bytes_after)
    facts = {
        "Criterion": made.criterion,
        "Gate weights": made.gate,
        "Calibration corpus": ", ".join(made.corpora),
        "Schedule": made.schedule,
        "Sparsity asked for": made.sparsity,
        "Experts removed": f"{sizes.experts_removed} of {sizes.experts_before} ({share:.1%})",
        "Parameters": f"{sizes.params_after:,} (before: {sizes.params_before:,})",
        "Weights": f"{after} (before: {before})",
        "Source identity": f"`{model.identity}`",
        "Plan digest": f"`{plan.digest}`",
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


_CARD = """---
{metadata}
---

# {name}

{model} ({family}) with some of its routed experts removed. The weights that stay are those of the
source, byte for byte; nothing was trained afterwards.
{licence}
## What was removed

{kept}

{facts}

The ids of the experts that stay, and the SHA-256 of every file, are in `moeprune_manifest.json`.

## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "{name}"  # this folder, or its id on the hub
model = AutoModelForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
```
"""
_NO_LICENCE = """
The source names no licence in its card; look it up before you pass this model on.
"""


def model_card(model: MoEModel, plan: PruningPlan, name: str) -> bytes:
    """The README.md of an export.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.
        name: what the export is called.

    Raises:
        ExportError: the source's card has metadata that cannot be read.
    """
    source = source_metadata(model.checkpoint.path)
    text = _CARD.format(
        metadata=_card_data(model, source).to_yaml(),
        name=name,
        model=model.name,
        family=model.family.label,
        licence="" if source.get("license") else _NO_LICENCE,
        kept=_kept_table(model, plan),
        facts=_facts(model, plan),
    )
    return str(ModelCard(text).content).encode()
