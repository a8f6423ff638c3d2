"""Discovery: the table of an architecture that nobody listed, made from its checkpoint.

Only the common layout is recognised, by names and shapes, and nothing is guessed where two
readings are possible: such a checkpoint is refused with the reason.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.checkpoint.index import Config
from analysis.errors import UnsupportedModelError
from analysis.families.base import (
    PER_LAYER_KEY,
    GroupRule,
    MoEFamily,
    RouterTensor,
    SharedExperts,
    SlotKind,
)

COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_topk",
    "top_k_experts",
)
_WIDTH_KEYS = ("moe_intermediate_size", "intermediate_size", "expert_ffn_hidden_size")
_PROJECTIONS = (
    {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    {"gate": "w1", "up": "w3", "down": "w2"},
)
_STACKED = {"gate_up": "experts.gate_up_proj", "down": "experts.down_proj"}
_NAMES = re.compile(
    r"(?P<trunk>(?:\w+\.)*?layers)\.(?P<layer>\d+)\.(?P<block>\w+)\.(?P<rest>[\w.]+)"
)
_EXPERT = re.compile(r"experts\.\d+\.(\w+)\.\w+")
_STACK = re.compile(r"experts\.(gate_up_proj|down_proj)(_\w+)?")
_SHARED = re.compile(r"(shared_experts?|shared_mlp)(_gate)?\.")
# What a tensor outside the block is called where it may be the router's.
_ROUTED = re.compile(r"expert|router|moe")
# A correction bias may lie in the router or beside it, and move when the model is loaded.
_BIASES = ("e_score_correction_bias", "expert_bias")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the experts are."""

    trunk: str  # prefix of the layers
    block: str  # name of the MoE block in a layer
    layers: frozenset[int]  # decoder indices that have experts
    # (layer, name inside the block) -> shape, of those layers.
    tensors: Mapping[tuple[int, str], tuple[int, ...]]

    @property
    def names(self) -> set[str]:
        """Names inside the block, of all layers together."""
        return {name for _, name in self.tensors}


def discover(config: Config, shapes: Shapes) -> MoEFamily:
    """The family of a checkpoint whose model type is not listed, but which has experts."""
    try:
        return _discover(config, shapes)
    except _NotCommonError as error:
        raise UnsupportedModelError(
            f"The model type {config.get('model_type')!r} is not in the table of families, and its "
            f"checkpoint does not follow the common layout: {error}."
        ) from error


def oriented(family: MoEFamily, config: Config, shapes: Shapes) -> MoEFamily:
    """A listed family as a checkpoint has it, where stacked matrices may be (experts, in, out)."""
    hidden = _whole(family.text_config(config), "hidden_size")
    for name, shape in shapes.items():
        slot = family.locate(name)
        if slot is None or slot.kind is not SlotKind.STACKED or slot.role != "weight":
            continue
        takes_columns = shape[-1] == hidden
        if takes_columns != (shape[-2] == hidden):  # else it is square, which tells nothing
            is_down = slot.projection == "down"
            return replace(family, is_transposed=takes_columns == is_down)
    return family


class _NotCommonError(Exception):
    """Why a checkpoint does not follow the common layout."""


def _discover(config: Config, shapes: Shapes) -> MoEFamily:
    path = () if _counts(config) else ("text_config",)
    text: Config = config[path[0]] if path else config
    counts = _counts(text)
    top_k_key = _one([key for key in _TOP_K_KEYS if text.get(key)], "key of experts per token")
    place = _place_of_experts(shapes)
    projections, stacked = _projection_names(place)
    # Of a pruned checkpoint, layers may differ.
    per_layer = text.get(PER_LAYER_KEY)
    by_layer = dict(enumerate(per_layer)) if isinstance(per_layer, list) else {}
    count = _whole(text, counts[0])
    if not count:
        raise _NotCommonError(f"{counts[0]} = {text[counts[0]]!r} is no number of experts")
    counts_of = {layer: by_layer.get(layer, count) for layer in place.layers}
    router = _router_tensors(place, counts_of)
    _check_outside(place, shapes, counts_of)
    has_groups = _whole(text, "n_group") > 1
    depth = _whole(text, "num_hidden_layers")
    trunks = (place.trunk, *(f"{p}.layers" for p in ("model.language_model", "model") if path))
    return MoEFamily(
        model_type=str(config.get("model_type", "")),
        label=str(config.get("model_type", "unnamed")),
        gate_rule="that of the model's own code; discovered, not known",
        trunks=(place.trunk,),
        module_trunks=tuple(dict.fromkeys(trunks[::-1] if path else trunks)),
        disk_block=place.block,
        module_block=place.block,
        router=router[0].name.partition(".")[0],
        router_tensors=router,
        projections=projections,
        stacked=stacked,
        is_transposed=bool(stacked) and not projections and _is_transposed(place, text),
        count_keys=counts,
        top_k_key=top_k_key,
        width_key=next((key for key in _WIDTH_KEYS if text.get(key)), "moe_intermediate_size"),
        config_path=path,
        is_sparse=lambda config, layer: layer in place.layers,
        groups=GroupRule(2) if has_groups else None,
        shared=_shared_experts(place, text),
        auto_class="AutoModelForImageTextToText" if path else "AutoModelForCausalLM",
        discovered=True,
        assumptions=_assumptions(place, depth, router, projections, has_groups=has_groups),
    )


def _counts(config: Config) -> tuple[str, ...]:
    return tuple(key for key in COUNT_KEYS if config.get(key) is not None)


def _whole(config: Config, key: str) -> int:
    value = config.get(key)
    return value if type(value) is int else 0


def _one(names: Sequence[str], what: str) -> str:
    """The only one of its kind."""
    if len(names) != 1:
        listed = f"it has {len(names)}: {', '.join(sorted(names))}" if names else "it has none"
        raise _NotCommonError(f"one {what} is expected, but {listed}")
    return names[0]


def _place_of_experts(shapes: Shapes) -> _Place:
    trunks: set[str] = set()
    blocks: defaultdict[str, set[int]] = defaultdict(set)
    in_blocks: defaultdict[str, dict[tuple[int, str], tuple[int, ...]]] = defaultdict(dict)
    for name, shape in shapes.items():
        match = _NAMES.fullmatch(name)
        if name.startswith("mtp."):  # heads have experts of their own
            continue
        if match and match["block"] == "experts":
            raise _NotCommonError(f"{name} lies directly in its layer, in no block")
        if match is None and ".experts." in name:
            raise _NotCommonError(f"{name} is no <prefix>.layers.N.<block>.experts tensor")
        if match is None:
            continue
        layer, block, rest = int(match["layer"]), match["block"], match["rest"]
        in_blocks[block][layer, rest] = shape
        if rest.startswith("experts."):
            trunks.add(match["trunk"])
            blocks[block].add(layer)
    trunk = _one(sorted(trunks), "stack of layers with experts")
    block = _one(sorted(blocks), "block with experts in a layer")
    layers = blocks[block]
    tensors = {at: shape for at, shape in in_blocks[block].items() if at[0] in layers}
    return _Place(trunk, block, frozenset(layers), tensors)


def _projection_names(place: _Place) -> tuple[dict[str, str], dict[str, str]]:
    """Names of the projections of one expert, and of stacked ones."""
    names = {match[1] for name in place.names if (match := _EXPERT.fullmatch(name))}
    for projections in _PROJECTIONS:
        if names == set(projections.values()):
            return projections, _STACKED
    if names:
        raise _NotCommonError(f"its experts hold {', '.join(sorted(names))}")
    stacks = {name for name in place.names if name.startswith("experts.")}
    if set(_STACKED.values()) <= stacks:
        return {}, _STACKED
    raise _NotCommonError(f"its stacked experts hold {', '.join(sorted(stacks))}")


def _is_transposed(place: _Place, config: Config) -> bool:
    """Whether stacked matrices are (experts, in, out); shapes decide, if they can."""
    hidden = _whole(config, "hidden_size")
    layer = min(place.layers)
    first, last = (place.tensors[layer, name][1:] for name in _STACKED.values())
    is_usual = first[1] == hidden == last[0] and first[0] == 2 * last[1]
    is_swapped = first[0] == hidden == last[1] and first[1] == 2 * last[0]
    if is_usual == is_swapped:
        raise _NotCommonError(f"stacked experts of shapes {first} and {last} can be read two ways")
    return is_swapped


def _router_tensors(place: _Place, counts: Mapping[int, int]) -> tuple[RouterTensor, ...]:
    """The router's tensors, once it is known that nothing else has an entry per expert."""
    matrices = [name for name in ("gate.weight", "router.weight") if name in place.names]
    matrix = _one(matrices, "router matrix")
    module = matrix.partition(".")[0]
    names = {f"{prefix}{bias}" for bias in _BIASES for prefix in ("", f"{module}.")}
    names = names | {f"{module}.bias"}
    for (layer, name), shape in place.tensors.items():
        where, count = f"{place.trunk}.{layer}.{place.block}.{name}", counts[layer]
        if name == matrix and shape[:1] != (count,):
            raise _NotCommonError(f"{where} has the shape {shape}, but there are {count} experts")
        is_known = name == matrix or name in names or _SHARED.match(name)
        if is_known or _EXPERT.fullmatch(name) or _STACK.fullmatch(name):
            continue
        # GroveMoE has `chunk_experts`, one for every two experts.
        if count in shape or name.startswith(f"{module}.") or "experts" in name:
            raise _NotCommonError(f"{where} may depend on the experts, in a way that is not known")
    suffixes = {name.rpartition(".")[2] for name in place.names & names}
    extra = [RouterTensor(name) for name in sorted(names) if name.rpartition(".")[2] in suffixes]
    return RouterTensor(matrix), *extra


def _check_outside(place: _Place, shapes: Shapes, counts: Mapping[int, int]) -> None:
    """Refuse a tensor beside the block whose name and shape both say that it is of the experts.

    One of them is not enough: a norm of heads may be as long as there are experts.
    """
    outside = re.compile(rf"{re.escape(place.trunk)}\.(\d+)\.(?!{re.escape(place.block)}\.)(.+)")
    for name, shape in shapes.items():
        match = outside.fullmatch(name)
        sounds_routed = match and _ROUTED.search(match[2]) and "shared" not in match[2]
        if match and sounds_routed and counts.get(int(match[1])) in shape:
            raise _NotCommonError(
                f"{name} has an entry for each of {counts[int(match[1])]} experts, but lies "
                f"outside the block {place.block}"
            )


def _shared_experts(place: _Place, config: Config) -> SharedExperts | None:
    if not any(_SHARED.match(name) for name in place.names):
        return None
    for key in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if config.get(key):
            return SharedExperts(key)
    counts = [key for key in ("n_shared_experts", "num_shared_experts") if config.get(key)]
    return SharedExperts("moe_intermediate_size", counts[0] if counts else "", width_is_each=True)


def _assumptions(
    place: _Place,
    depth: int,
    router: Sequence[RouterTensor],
    projections: object,
    *,
    has_groups: bool,
) -> tuple[str, ...]:
    experts = "one tensor per projection of an expert" if projections else "stacked"
    assumptions = [
        f"experts are {place.trunk}.N.{place.block}.experts, {experts}",
        # Others beyond the depth are prediction heads.
        f"layers with experts are those that hold some ({sum(n < depth for n in place.layers)})",
        f"the router is {place.block}.{router[0].name}; its forward returns the ids last",
        "the loaded model has the checkpoint's names for block and router",
    ]
    if len(router) > 1:
        assumptions.append("entries per expert: " + ", ".join(tensor.name for tensor in router))
    if has_groups:
        assumptions.append("a group is judged by its two best experts")
    return tuple(assumptions)
