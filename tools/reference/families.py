"""The reference of families: every architecture with its routing, its layout and its keys."""

from pathlib import Path

from analysis.families.base import MoEFamily
from analysis.families.listing import FAMILIES
from analysis.families.refused import REFUSED
from analysis.families.rules import AllOrNone, every_layer
from tools.reference.markdown import cell, table

__all__ = ["families", "refused"]


def families(_root: Path) -> str:
    """One row for each family."""
    head = ("model type", "name", "gate weights", "experts", "keys of config.json")
    rows = [
        (
            f"`{family.model_type}`",
            family.label,
            cell(family.gate_rule),
            "; ".join(_layout(family)),
            _keys(family),
        )
        for family in FAMILIES.values()
    ]
    return table(head, rows)


def refused(_root: Path) -> str:
    """One row for each architecture that is refused, with the reason."""
    reasons: dict[str, list[str]] = {}
    for model_type, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(f"`{model_type}`")
    return table(("model type", "why"), [(", ".join(t), cell(r)) for r, t in reasons.items()])


def _layout(family: MoEFamily) -> list[str]:
    notes = {
        "per expert or stacked" if family.projections else "stacked": True,
        "in the layer itself, in no block": not family.module_block,
        "stacked transposed (experts, in, out)": family.is_transposed,
        "gate and up interleaved": family.is_interleaved,
        "biases": family.has_bias,
        "no gate projection": "gate" not in family.parts,
        "in all layers or none": isinstance(family.is_sparse, AllOrNone),
        "some layers may be dense": not (
            family.is_sparse is every_layer or isinstance(family.is_sparse, AllOrNone)
        ),
        f"always {family.fixed_top_k} per token": family.fixed_top_k > 0,
        "groups": family.groups is not None,
        "correction bias": bool(family.correction_biases),
        "tables of token ids": any(
            router_tensor.holds_ids for router_tensor in family.router_tensors
        ),
        _shared(family): family.shared is not None,
        f"width shared with {family.width_shared_with}": bool(family.width_shared_with),
        f"transformers {family.needs_transformers} or newer": bool(family.needs_transformers),
        f"composite: its part `{'.'.join(family.config_path)}`": bool(family.config_path),
    }
    return [note for note, applies in notes.items() if applies]


def _shared(family: MoEFamily) -> str:
    several = family.shared is not None and family.shared.count_key
    return "shared experts" if several else "a shared expert"


def _keys(family: MoEFamily) -> str:
    top_k = "" if family.fixed_top_k else family.top_k_key
    keys = [*family.count_keys, top_k, family.width_key]
    keys += [other for other, key in family.aliases.items() if key in keys]
    return ", ".join(f"`{key}`" for key in keys if key)
