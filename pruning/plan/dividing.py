"""Which numbers of experts and widths the processes of an engine can divide.

With `ep`, each process holds whole experts; without, each holds a slice of every expert. vLLM
spreads experts over `tp` times its data-parallel processes, SGLang slices them `tp / ep` times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from analysis.model.widths import scale_blocks
from pruning.plan.constraints import Parallel

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.plan.constraints import Constraints

_LATENT = "kv_lora_rank"  # of multi-head latent attention, whose one key-value head is replicated
# Configuration key of heads that are divided -> what they are.
_HEADS = {
    "num_attention_heads": "attention heads",
    "linear_num_key_heads": "key heads of linear attention",
    "linear_num_value_heads": "value heads of linear attention",
}
_KV_HEADS = "num_key_value_heads"


def divided(
    limits: Constraints, parallel: Parallel, model: MoEModel, *, neurons: int = 0
) -> Constraints:
    """The limits with multiples that the processes divide; refuses what no multiple can mend.

    `neurons`: 0 for a plan of whole experts; else widths are rounded up to multiples of this.
    """
    problem = next(_problems(limits, parallel, model, by_neuron=bool(neurons)), None)
    if problem:
        raise PlanError(f"--serve-on {parallel}: {problem}")
    step = math.lcm(_width_step(parallel, model), neurons) if neurons else parallel.ep
    return replace(limits, multiple_of=math.lcm(limits.multiple_of, step))


def parallel_note(
    parallel: Parallel | None, limits: Constraints, model: MoEModel, *, by_neuron: bool = False
) -> str:
    """What was rounded and checked, in a line; empty without processes. `limits`: see `divided`."""
    if parallel is None:
        return ""
    who, what = ("each expert", "neurons") if by_neuron else ("each layer", "experts")
    kept = f"{who} keeps a multiple of {limits.multiple_of} {what}"
    if limits.multiple_of == 1:
        kept = f"any number of {what} works"
    heads = [
        f"{model.config[key]} {words}"
        for key, words in _HEADS.items()
        if type(model.config.get(key)) is int
    ]
    has_heads = bool(heads) and parallel.tp > 1
    checked = f"; {' and '.join(heads)} divide by {parallel.tp}" if has_heads else ""
    return f"For {parallel} {kept}{checked}."


def _width_step(parallel: Parallel, model: MoEModel) -> int:
    """What the width of an expert must be a multiple of: whole FP8 blocks in each slice."""
    return parallel.slices * math.lcm(*(scale_blocks(model) or (1,)))


def _problems(
    limits: Constraints, parallel: Parallel, model: MoEModel, *, by_neuron: bool
) -> Iterator[str]:
    if parallel.tp % parallel.ep and parallel.ep % parallel.tp:
        yield "engines make groups of one size, so one of the two must divide the other."
    yield from _head_problems(parallel.tp, model)
    step, width = _width_step(parallel, model), model.config.get(model.family.width_key)
    keeps_width = not by_neuron or bool(limits.protected or limits.pinned)
    if keeps_width and type(width) is int and width % step:
        cut = f"{parallel.slices} slices" + (
            f" of whole FP8 blocks ({step // parallel.slices})" if step > parallel.slices else ""
        )
        yield (
            f"experts of {width} neurons cannot be cut into {cut}; give ep={parallel.tp}, which "
            "leaves experts whole."
        )
    for layer in model.layers:
        dropped = len(limits.dropped.get(layer.index, ())) if by_neuron else 0
        if (by_neuron or layer.index in limits.protected) and (
            (layer.num_experts - dropped) % parallel.ep
        ):
            yield (
                f"layer {layer.index} keeps {layer.num_experts - dropped} experts, which "
                f"{parallel.ep} processes do not divide"
                + ("." if by_neuron else "; leave it out of --protect.")
            )


def _head_problems(tp: int, model: MoEModel) -> Iterator[str]:
    config = model.config
    for key, words in _HEADS.items():
        count = config.get(key)
        if type(count) is int and count % tp:
            works = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            yield f"{count} {words} of {model.name} do not divide by {tp}; tp can be {works}."
    count = config.get(_KV_HEADS)
    # Fewer heads than processes are replicated, on as many processes each.
    if type(count) is int and count and not config.get(_LATENT) and count % tp and tp % count:
        works = ", ".join(str(n) for n in range(1, tp + 1) if not (count % n and n % count))
        yield f"{count} key-value heads of {model.name} do not divide by {tp}; tp can be {works}."
