"""What a plan keeps: experts as their router allows, and neurons, ordered, to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.model.widths import expert_widths, quantised_role
from analysis.numbers.sparsity import as_percent
from pruning.plan.layer_words import MOST_DIGITS

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.model.moe_model import MoEModel

# Decoder index -> expert -> ids of the neurons that stay, ascending.
KeptNeurons = Mapping[int, Mapping[int, tuple[int, ...]]]
KeptWidths = Mapping[int, Mapping[int, int]]  # layer -> expert that stays -> neurons it keeps


def count_problem(layer: MoELayer, keep: int) -> str | None:
    """Why a layer cannot keep this many experts, and the nearest numbers that work; None if it can.

    A router that chooses among groups needs the same number of experts in each.
    """
    sentences = _reason_and_remedy(layer, keep)
    return f"{'; '.join(filter(None, sentences))}." if sentences else None


def count_reason(layer: MoELayer, keep: int) -> str | None:
    """The reason of `count_problem` alone."""
    sentences = _reason_and_remedy(layer, keep)
    return sentences[0] if sentences else None


def _reason_and_remedy(layer: MoELayer, keep: int) -> tuple[str, str] | None:
    count, groups = layer.num_experts, layer.num_groups
    most = as_percent(count - layer.least_kept, count)
    if keep > count:
        return f"Layer {layer.index} would keep {keep} experts, but it has only {count}", ""
    would = f"Layer {layer.index} would keep {keep} of {count} experts, but its router"
    if keep < layer.top_k:
        return f"{would} picks {layer.top_k} per token", f"at most {most} of them can go"
    if keep < layer.least_kept:
        needs = f"needs {layer.least_per_group} in each of {groups} groups"
        return f"{would} {needs}", f"at most {most} can go"
    if keep % groups == 0:
        return None
    below, above = keep // groups * groups, (keep // groups + 1) * groups
    near = [number for number in (below, above) if number >= layer.least_kept]
    shares = [f"{number} ({as_percent(count - number, count)} sparsity)" for number in near]
    chooses = f"chooses among {groups} groups, each of which must keep as many"
    return f"{would} {chooses}", f"nearest: {' or '.join(shares)}"


def check_kept(layer: MoELayer, ids: Sequence[int]) -> None:
    """Refuse kept experts that break the layer's router or its groups."""
    if problem := count_problem(layer, len(ids)):
        raise PlanError(problem)
    if layer.num_groups == 1:
        return
    size = layer.num_experts // layer.num_groups
    counts = [sum(expert // size == group for expert in ids) for group in range(layer.num_groups)]
    if len(set(counts)) > 1:
        raise PlanError(
            f"The plan keeps {', '.join(map(str, counts))} experts in the {layer.num_groups} "
            f"groups of layer {layer.index}, but a router that chooses among groups needs the same "
            f"number in each; here {len(ids) // layer.num_groups} in each would work."
        )


def ordered_neurons(neurons: Mapping[int, Mapping[int, Sequence[int]]]) -> KeptNeurons:
    """A validated read-only copy, ordered by layer and expert."""
    result = {}
    for layer in sorted(neurons):
        for expert, ids in neurons[layer].items():
            where = f"expert {expert} of layer {layer}"
            if layer < 0 or expert < 0:
                raise PlanError(f"The plan names {where}; both count from 0.")
            if ids and min(ids) < 0:
                raise PlanError(
                    f"The plan keeps neuron {min(ids)} of {where}; neurons count from 0."
                )
            for before, after in pairwise(ids):
                if before == after:
                    raise PlanError(f"The plan lists neuron {after} of {where} twice.")
                if before > after:
                    raise PlanError(f"The plan lists the neurons of {where} out of order.")
        in_order = {expert: tuple(neurons[layer][expert]) for expert in sorted(neurons[layer])}
        result[layer] = MappingProxyType(in_order)
    return MappingProxyType(result)


def neurons_from_json(raw: object) -> KeptNeurons:
    """Parse `kept_neurons` of a plan: `{"<layer>": {"<expert>": [ids]}}`."""
    if not isinstance(raw, Mapping):
        raise PlanError("The plan has no 'kept_neurons': layer -> expert -> ids of its neurons.")
    neurons: dict[int, dict[int, tuple[int, ...]]] = {}
    for layer, experts in raw.items():
        if not isinstance(experts, Mapping):
            raise PlanError(f"The plan's 'kept_neurons' of layer {layer} are no object of experts.")
        layer_neurons = neurons[_number(layer, "layer")] = {}
        for expert, ids in experts.items():
            number = _number(expert, "expert")
            if not isinstance(ids, list) or any(type(neuron) is not int for neuron in ids):
                raise PlanError(
                    f"The plan's neurons of expert {expert} in layer {layer} are not a list of "
                    "integers."
                )
            layer_neurons[number] = tuple(sorted(ids))
    return ordered_neurons(neurons)


def _number(key: Any, what: str) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= MOST_DIGITS):
        raise PlanError(f"The plan's 'kept_neurons' name {what} {key!r}, which is no number.")
    return int(key)


def neurons_to_json(neurons: KeptNeurons) -> dict[str, dict[str, list[int]]]:
    """Inverse of `neurons_from_json`."""
    return {
        str(layer): {str(expert): list(ids) for expert, ids in experts.items()}
        for layer, experts in neurons.items()
    }


def neurons_text(raw: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """`kept_neurons` as a JSON object with one line per expert."""
    layers = []
    for layer, experts in raw.items():
        lines = ",\n".join(
            f'      "{expert}": {json.dumps(ids)}' for expert, ids in experts.items()
        )
        layers.append(f'    "{layer}": ' + (f"{{\n{lines}\n    }}" if lines else "{}"))
    inner = ",\n".join(layers)
    return f"{{\n{inner}\n  }}" if inner else "{}"


def check_cuttable(model: MoEModel) -> None:
    """Refuse a model whose experts are quantised: no neurons can be cut out of them."""
    if role := quantised_role(model):
        raise PlanError(
            f"The experts of {model.name} are quantised (they have {role}), and neurons cannot be "
            "cut out of that; dequantise the checkpoint first, or remove whole experts."
        )


def fit_neurons(
    neurons: KeptNeurons, kept: Mapping[int, Sequence[int]], model: MoEModel
) -> KeptNeurons:
    """The neurons, checked against a model, without experts that keep all of theirs.

    `kept` are the experts that stay in every layer.
    """
    if neurons:
        check_cuttable(model)
    widths = expert_widths(model) if neurons else {}
    result: dict[int, dict[int, tuple[int, ...]]] = {}
    for layer, experts in neurons.items():
        if layer not in widths:
            raise PlanError(
                f"The plan names neurons of layer {layer}, which has no routed experts in "
                f"{model.name}."
            )
        for expert, ids in experts.items():
            where, layer_widths = f"expert {expert} in layer {layer}", widths[layer]
            if expert >= len(layer_widths):
                raise PlanError(
                    f"The plan names neurons of {where}, which has {len(layer_widths)} experts "
                    f"(0..{len(layer_widths) - 1})."
                )
            if expert not in kept[layer]:
                raise PlanError(
                    f"The plan names neurons of {where}, but removes that expert; name it in "
                    "'kept' or leave its neurons out."
                )
            if ids and ids[-1] >= layer_widths[expert]:
                raise PlanError(
                    f"The plan keeps neuron {ids[-1]} of {where}, which has {layer_widths[expert]} "
                    f"neurons (0..{layer_widths[expert] - 1})."
                )
            if len(ids) < layer_widths[expert]:
                result.setdefault(layer, {})[expert] = ids
    return ordered_neurons(result)


def kept_ids(neurons: KeptNeurons, layer: int, expert: int, width: int) -> tuple[int, ...] | range:
    """The neurons that an expert keeps; all if the plan does not name it."""
    return neurons.get(layer, {}).get(expert, range(width))


def kept_widths(
    neurons: KeptNeurons, kept: Mapping[int, Sequence[int]], model: MoEModel
) -> dict[int, dict[int, int]]:
    """Layer -> expert that stays -> neurons it keeps; `kept` are the experts of every layer."""
    widths = expert_widths(model)
    return {
        layer: {e: len(kept_ids(neurons, layer, e, widths[layer][e])) for e in ids}
        for layer, ids in kept.items()
    }


def count_neurons(
    neurons: KeptNeurons, kept: Mapping[int, Sequence[int]], model: MoEModel
) -> tuple[int, int]:
    """Neurons that stay, and neurons there are, in all experts; arguments as in `kept_widths`."""
    stay = sum(sum(experts.values()) for experts in kept_widths(neurons, kept, model).values())
    return stay, sum(map(sum, expert_widths(model).values()))


def counts_by_layer(
    neurons: KeptNeurons | None, kept: Mapping[int, Sequence[int]], model: MoEModel
) -> tuple[int, ...]:
    """Experts that stay in each layer, or the neurons of all its experts.

    `neurons` are those of a plan of neurons, else None; `kept` as in `kept_widths`.
    """
    if neurons is None:
        return tuple(len(kept[layer.index]) for layer in model.layers)
    widths = kept_widths(neurons, kept, model)
    return tuple(sum(widths[layer.index].values()) for layer in model.layers)
