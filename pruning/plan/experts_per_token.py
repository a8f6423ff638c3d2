"""Fewer experts per token than a model selects, a number a layer: bounds, and the words. No torch.

A router that selects fewer computes as one whose configuration says so. Memory stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, Any, Final

from analysis.errors import PlanError
from pruning.plan.layer_words import MOST_DIGITS

if TYPE_CHECKING:
    from analysis.families.base import MoEFamily, MoELayer
    from analysis.model.moe_model import MoEModel

# Decoder index -> experts per token of every layer; empty: as many as the model selects.
TopK = Mapping[int, int]
_EVERY: Final = -1  # in place of an index, in a plan that names no layers yet: all of the model
_MOST = 10**4


def check_top_k(model: MoEModel, top_k: int) -> None:
    """Refuse a number of experts per token that is not below the model's own.

    More would be another model than was trained. Groups of a router allow every smaller number.
    """
    if model.family.fixed_top_k:
        raise PlanError(
            f"The router of {model.family.label} always selects {model.family.fixed_top_k} "
            "experts per token, whatever its configuration says; leave the top-k out."
        )
    if any(tensor.holds_ids for tensor in model.family.router_tensors):
        for layer in model.layers:
            if any(tensor.slot.holds_ids for tensor in model.located[layer.index]):
                raise PlanError(
                    f"Layer {layer.index} of {model.name} looks experts up by token id, in a table "
                    f"of {layer.top_k} for each token; leave the top-k out."
                )
    own = max(layer.top_k for layer in model.layers)
    if not 1 <= top_k < own:
        raise PlanError(
            f"{model.name} selects {own} experts per token; "
            + (f"choose a top-k of 1 to {own - 1}." if own > 1 else "there are no fewer.")
        )


@lru_cache(maxsize=8)  # a page asks it of its model at every rerun
def possible_top_k(model: MoEModel) -> tuple[int, ...]:
    """What a plan may say of experts per token: 0, and the smaller numbers, largest first."""
    own = max(layer.top_k for layer in model.layers)
    try:
        check_top_k(model, 1)
    except PlanError:
        return (0,)
    return (0, *range(own - 1, 0, -1))


def even_top_k(model: MoEModel, top_k: int) -> dict[int, int]:
    """At most this number in every layer."""
    check_top_k(model, top_k)
    return {layer.index: min(top_k, layer.top_k) for layer in model.layers}


def parse_mean(text: str) -> Fraction:
    """An exact number of experts per token, from 1 up."""
    try:
        mean = Fraction(Decimal(text))
    except (InvalidOperation, ValueError, OverflowError):
        mean = Fraction(0)
    if not 1 <= mean <= _MOST:
        raise PlanError(f"{text!r} is no mean of experts per token; give 1 or more, such as 5.5.")
    return mean


def fewer_in_all(model: MoEModel, mean: str) -> int:
    """How many fewer all layers select together, so that they select at most this on average."""
    own = [layer.top_k for layer in model.layers]
    check_top_k(model, 1)
    fewer = sum(own) - floor(parse_mean(mean) * len(own))
    if fewer < 1:
        raise PlanError(
            f"{model.name} selects {sum(own) / len(own):.4g} experts per token; choose a smaller "
            "mean."
        )
    return fewer


def fit_top_k(top_k: TopK, layers: Collection[int], model: MoEModel) -> TopK:
    """The numbers of a plan, checked and complete; empty if they are the model's own.

    One number in all `layers`, those that the plan names, is that of all layers of the model.
    """
    if not top_k:
        return top_k
    if number := _one_number(top_k, layers):
        return even_top_k(model, number)
    own = {layer.index: layer.top_k for layer in model.layers}
    if unknown := sorted(top_k.keys() - own.keys()):
        raise PlanError(
            f"The plan's 'top_k' names layer {unknown[0]}, which has no routed experts in "
            f"{model.name}; leave it out."
        )
    check_top_k(model, min(top_k.values()))
    if (most := max(top_k.values())) > max(own.values()):
        check_top_k(model, most)
    fitted = {layer: min(number, top_k.get(layer, number)) for layer, number in own.items()}
    return {} if fitted == own else fitted


def selecting(layer: MoELayer, top_k: TopK) -> MoELayer:
    """The layer with a router that selects as many as a plan says."""
    return replace(layer, top_k=min(layer.top_k, top_k.get(layer.index, layer.top_k)))


def has_one_top_k(top_k: TopK) -> bool:
    """Whether all layers select one number of experts, which a configuration can say."""
    return len(set(top_k.values())) < 2


def is_written(top_k: TopK, family: MoEFamily) -> bool:
    """Whether a configuration of the family can say these numbers."""
    return has_one_top_k(top_k) or family.allows_lists


def written_top_k(top_k: TopK, family: MoEFamily, depth: int) -> int | list[int]:
    """What config.json says: one number, or a list for families that read one; else refused."""
    least, most = min(top_k.values()), max(top_k.values())
    if has_one_top_k(top_k):
        return most
    if not is_written(top_k, family):
        raise PlanError(
            f"The plan selects {least} to {most} experts per token, by layer, and config.json has "
            f"one number for all layers, {family.top_k_key}; give one, such as "
            f"--top-k {sum(top_k.values()) // len(top_k)}."
        )
    return [top_k.get(layer, most) for layer in range(depth)]


def ordered_top_k(top_k: object, layers: Collection[int] = ()) -> dict[int, int]:
    """The numbers by layer, ascending; a PlanError if they are none.

    One number is that of the layers that a plan names, and stands for all.
    """
    is_one = not isinstance(top_k, Mapping)
    numbers = top_k if isinstance(top_k, Mapping) else dict.fromkeys(layers or [_EVERY], top_k)
    for layer, number in numbers.items():
        if type(layer) is not int or (layer < 0 and len(layers) + len(numbers) > 1):
            raise PlanError(f"The plan's 'top_k' names layer {layer!r}; give decoder indices.")
        if type(number) is not int or number < 1:
            where = "" if is_one else f" of layer {layer}"
            raise PlanError(
                f"The plan's 'top_k'{where} is {number!r}; give experts per token, 1 or more."
            )
    return dict(sorted(numbers.items()))


def _one_number(top_k: TopK, layers: Collection[int]) -> int:
    """The number that all of a plan's layers have; 0 if they differ, or some have none."""
    is_one = len(set(top_k.values())) == 1 and top_k.keys() in ({_EVERY}, set(layers))
    return next(iter(top_k.values())) if is_one else 0


def top_k_to_json(top_k: TopK, layers: Collection[int]) -> int | dict[str, int]:
    """One number, if all of the plan's layers have it; else a number a layer."""
    by_layer = {str(layer): number for layer, number in top_k.items()}
    return _one_number(top_k, layers) or by_layer


def top_k_from_json(raw: Any, layers: Collection[int]) -> dict[int, int]:
    """The numbers in a plan.json; one number is that of all layers, whichever the plan names."""
    if not isinstance(raw, dict):
        return {} if raw == 0 and type(raw) is int else ordered_top_k(raw, layers)
    by_layer = ordered_top_k(
        {
            int(key) if key.isdecimal() and len(key) <= MOST_DIGITS else key: number
            for key, number in raw.items()
        }
    )
    if number := _one_number(by_layer, layers):
        raise PlanError(
            f"The plan's 'top_k' is {number} in every layer that 'kept' names; write {number} if "
            "all layers select as many, or name those that select more in 'kept' too."
        )
    return by_layer


def top_k_text(top_k: TopK) -> str:
    """Experts per token as records have them: 3, or 4.3.3.2 where layers differ; or empty."""
    numbers = list(top_k.values())
    return ".".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def top_k_words(text: str) -> str:
    """What follows the name of a plan that selects fewer experts per token; else empty.

    `text` is that of `top_k_text`. Of layers that differ the mean is said.
    """
    if not text:
        return ""
    numbers = [int(number) for number in text.split(".")]
    mean = sum(numbers) / len(numbers)
    return f", top-{mean:.4g}" + (" by layer" if len(numbers) > 1 else "")
