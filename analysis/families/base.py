"""What a family of MoE models is: a small table that says where its parts live."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from analysis.checkpoint.index import Config
from analysis.errors import CheckpointError
from analysis.families.rules import count_of, every_layer, per_layer_counts, top_ks_of, whole_number

PROJECTIONS = ("gate", "up", "down")
# Number of routed experts of each layer, 0 for a dense one; the scalar count is then the maximum.
PER_LAYER_KEY = "per_layer_num_experts"
# The same for other programs, which is only written.
PER_LAYER_ALIAS = "n_routed_experts_per_layer"
# Far beyond every model; lists are made of so many before tensors are looked for.
MOST_LAYERS, _MOST_EXPERTS = 10_000, 65_536
# Neurons of each layer's experts, 0 for a dense one. The scalar width is then what it was before
# pruning, because dense and shared layers may be built from it too.
WIDTHS_KEY = "per_layer_expert_width"
# Configuration keys of prediction heads beyond the trunk (MTP). An export without them says 0.
HEAD_KEYS = (
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
)
# What of a stacked projection has one entry per expert along axis 0: the weight itself, or the
# parts of a quantised one (FP8 with scales, MXFP4 in blocks).
_STACK_ROLES = frozenset(
    (
        "weight",
        "blocks",
        "scales",
        "scale",
        "scale_inv",
        "weight_scale",
        "weight_scale_inv",
        "activation_scale",
    )
)


@dataclass(frozen=True, slots=True)
class MoELayer:
    """One sparse layer."""

    index: int  # decoder index as in the checkpoint, not a position among the sparse layers
    num_experts: int  # routed experts
    top_k: int  # experts selected per token
    # Groups of neighbouring experts among which the router first chooses; 1 for a router that does
    # not. Every group keeps the same number of experts.
    num_groups: int = 1
    least_per_group: int = 1  # experts that each group must keep for the router to work

    @property
    def least_kept(self) -> int:
        """The smallest number of experts that the layer can keep."""
        return max(self.top_k, self.num_groups * self.least_per_group)


class SlotKind(StrEnum):
    """How a tensor depends on the experts."""

    EXPERT = "expert"  # belongs to one expert
    STACKED = "stacked"  # holds all experts along axis 0
    ROUTER = "router"  # has one entry per expert along an axis


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor sits in the (layer, expert) grid."""

    layer: int  # decoder index; in a head with a trunk of its own, the index there
    kind: SlotKind  # how it depends on the experts
    projection: str = ""  # gate, up, down, or gate_up where both are stacked; empty for a router
    expert: int | None = None  # the expert it belongs to; None unless kind is EXPERT
    template: str = ""  # its name with `{expert}` in place of the id; empty unless kind is EXPERT
    # What it is of its projection: weight, bias, or a part of a quantised weight such as
    # weight_scale_inv, blocks, scales; for a router, its name inside the block.
    role: str = "weight"
    axis: int = 0  # the axis with one entry per expert; 0 but for some biases of routers
    holds_ids: bool = False  # its values are ids of experts; it has no such axis


@dataclass(frozen=True, slots=True)
class RouterTensor:
    """A tensor of the router with one entry per expert."""

    name: str  # inside the block of the loaded model, such as `gate.weight`
    on_disk: str = ""  # the same in a checkpoint of the original layout, where it differs
    axis: int = 0  # the axis with one entry per expert
    is_factor: bool = False  # it multiplies the gate weight, and has no part in the selection
    # A table with a row of expert ids per token id, see `token_tables`, and no such axis.
    holds_ids: bool = False


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A router that first chooses groups of neighbouring experts, then experts within those."""

    best_of_group: int  # how many of its best experts a group is judged by; each must keep as many
    applies: Callable[[Config], bool] = lambda config: True  # whether a configuration uses the rule
    num_groups_key: str = "n_group"  # configuration key of the number of groups
    chosen_key: str = "topk_group"  # configuration key of the groups chosen per token


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """Experts that every token uses: never scored, never pruned."""

    width_key: str  # configuration key of their width
    count_key: str = ""  # configuration key of their number; empty where there is exactly one
    width_is_each: bool = False  # whether the width is that of one of them, not of all together
    # More keys of the width, of each and of all together: some read them where others multiply.
    each_key: str = ""
    total_key: str = ""
    note: str = ""  # what else is to say of them
    on_disk: str = "shared_experts"  # their module inside the block, in the original layout


def any_of(words: Iterable[str]) -> str:
    """A pattern of one of these words; of nothing without any."""
    # Longest first: one name may begin another.
    patterns = sorted(map(re.escape, words), key=len, reverse=True)
    return "|".join(patterns) if patterns else r"(?!)"


@dataclass(frozen=True)
class MoEFamily:
    """Everything in which one architecture differs from another.

    Names of tensors and modules are given relative to the MoE block of a layer.
    """

    model_type: str  # `config.json`'s word for it
    label: str  # its name for people
    gate_rule: str  # how the router makes gate weights, in words
    trunks: tuple[str, ...] = ("model.layers",)  # prefixes of the layers in checkpoints
    # Prefixes of the layers in loaded models; the first is that of `auto_class`.
    module_trunks: tuple[str, ...] = ("model.layers",)
    # Name of the MoE block inside a layer, in the checkpoint; empty if the layer itself is it.
    disk_block: str = "mlp"
    module_block: str = "mlp"  # the same in the loaded model
    router: str = "gate"  # the module whose forward returns (logits, gate weights, expert ids)
    returns_probabilities: bool = False  # their softmax is what comes first, not the logits
    # Tensors with one entry per expert, the router's matrix first.
    router_tensors: tuple[RouterTensor, ...] = (RouterTensor("gate.weight"),)
    router_others: tuple[str, ...] = ()  # the router's tensors without such an entry
    # Checkpoint names of the projections of one expert; empty where experts are stacked in every
    # layout. The keys say which projections there are.
    projections: Mapping[str, str] = field(
        default_factory=lambda: {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    )
    # Names of the stacked projections in the loaded model, and so in checkpoints saved from it;
    # made from `projections` if empty.
    stacked: Mapping[str, str] = field(
        default_factory=lambda: {"gate_up": "experts.gate_up_proj", "down": "experts.down_proj"}
    )
    # Their names in the original layout, where that is stacked too.
    stacked_on_disk: Mapping[str, str] = field(default_factory=dict)
    # Stacked matrices are (experts, in, out) instead of (experts, out, in).
    is_transposed: bool = False
    # On disk they may be either; the shapes tell, and loaded models are not transposed.
    may_be_transposed: bool = False
    has_bias: bool = False  # the stacked projections have biases
    # Gate and up alternate in the columns of a transposed gate_up, instead of gate coming first.
    is_interleaved: bool = False
    # Configuration keys that may hold the number of experts.
    count_keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    write_count_keys: tuple[str, ...] = ()  # keys that an export writes besides those present
    top_k_key: str = "num_experts_per_tok"  # configuration key of the experts selected per token
    # The number itself, for a router that ignores its configuration; 0 for none.
    fixed_top_k: int = 0
    # The router asks its configuration at each call, so no layer can select fewer for itself.
    shares_top_k: bool = False
    width_key: str = "moe_intermediate_size"  # configuration key of an expert's width
    # What else is built from that width, so that it cannot change for the experts alone; not shared
    # experts, whose number can change along.
    width_shared_with: str = ""
    is_width_shared: Callable[[Config], bool] = lambda config: True  # whether a configuration's is
    # Configuration key of the size of an expert's output, where it may differ from hidden_size.
    output_size_key: str = ""
    # Configuration key of the residual streams that layers hand on, where there are several.
    streams_key: str = ""
    # Configuration -> why its layers do not run alone, on hidden states; empty where they do.
    inseparable: Callable[[Config], str] = lambda config: ""
    # Keys that lead to the text model's part of a composite configuration.
    config_path: tuple[str, ...] = ()
    # Other names of keys, such as published configurations use -> the name that is read here.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Values of keys that a configuration may leave out.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    allows_lists: bool = False  # counts may be lists, a number a layer; those of experts are equal
    # Configuration -> number of layers.
    depth: Callable[[Config], int] = lambda config: whole_number(config, "num_hidden_layers")
    # (config, decoder index) -> whether that layer has experts.
    is_sparse: Callable[[Config, int], bool] = every_layer
    groups: GroupRule | None = None  # how the router chooses within groups; None if it never does
    shared: SharedExperts | None = None  # experts outside the routing
    # Serving engines of this family ignore `tie_word_embeddings`: without a head of its own vLLM
    # emits token 0 for ever and llama.cpp stops, so exports write the head.
    needs_own_head: bool = False
    # A term that its router adds before it selects can keep an expert from ever being chosen, and
    # neither choice nor gate weights of the others depend on that expert's logit. Not so where a
    # softmax over all experts comes first and the bias after it.
    can_exclude: bool = False
    # Configuration key of the number of prediction heads, where these follow the trunk as layers
    # like its last, each with `eh_proj`, norms, an embedding and a head of its own; else empty.
    appended_heads_key: str = ""
    has_uncounted_head: bool = False  # published with a head that config.json does not name
    # Keys of published configurations that engines read, and that transformers 5 may leave out when
    # it saves a model again: how the router scores, or how wide an attention head is.
    engine_keys: tuple[str, ...] = ()
    # Ends of names of tensors that are stored in float32 whatever the dtype of the rest.
    single: tuple[str, ...] = ()
    # The oldest version of transformers whose classes are as this table says, where that is not
    # the oldest that is allowed.
    needs_transformers: str = ""
    auto_class: str = "AutoModelForCausalLM"  # the auto class of transformers that loads it
    # That is the class of the language part alone, as the whole has no forward of its own. It loads
    # the part out of a checkpoint of the whole.
    loads_part: bool = False
    discovered: bool = False  # the table was made from the checkpoint itself
    assumptions: tuple[str, ...] = ()  # what was assumed of a discovered one

    def text_config(self, config: Config) -> Config:
        """The text model's part of a configuration, with the family's defaults and names."""
        part: Any = config
        for key in self.config_path:
            part = part.get(key)
            if not isinstance(part, dict):
                raise CheckpointError(f"config.json of this {self.label} model has no {key}.")
        text = {key: value for key, value in part.items() if value is not None}
        for other in self.aliases.keys() & text.keys():
            key = self.aliases[other]
            if text.setdefault(key, text[other]) != text[other]:
                raise CheckpointError(
                    f"config.json gives {key} = {text[key]} and {other} = {text[other]}, which "
                    "are one number; keep the one that matches the weights."
                )
        return {**self.defaults, **text}

    def num_experts(self, config: Config) -> int:
        """Routed experts of a sparse layer, from the text model's part of a configuration."""
        present = [key for key in self.count_keys if config.get(key) is not None]
        counts = {key: self._count(config, key) for key in present}
        if not counts:
            raise CheckpointError(
                f"config.json has none of {', '.join(self.count_keys)}, so the number of experts "
                f"of this {self.label} model is not known."
            )
        if len(set(counts.values())) > 1:
            raise CheckpointError(
                "config.json gives two numbers of experts: "
                + ", ".join(f"{key} = {value}" for key, value in counts.items())
                + "; keep the one that matches the weights."
            )
        return next(iter(counts.values()))

    def _count(self, config: Config, key: str) -> int:
        return count_of(config, key) if self.allows_lists else whole_number(config, key)

    def layers(self, config: Config) -> tuple[MoELayer, ...]:
        """Sparse layers only, in decoder order."""
        repeated = self._repeating_parts(config)
        config = self.text_config(config)
        depth = self.depth(config)
        if depth > MOST_LAYERS:
            raise CheckpointError(
                f"config.json gives {depth} layers; no model has more than {MOST_LAYERS}."
            )
        indices = [i for i in range(depth) if self.is_sparse(config, i)]
        if not indices:  # a dense model of the family need not count experts
            return ()
        for key, part in repeated.items():
            if self.num_experts(part) != self.num_experts(config):
                raise CheckpointError(
                    f"config.json gives {self.num_experts(config)} experts, but "
                    f"{self.num_experts(part)} in {key}; keep the number that matches the weights."
                )
        count = self.num_experts(config)
        top_ks = [self.fixed_top_k] * depth
        if not self.fixed_top_k:
            top_ks = top_ks_of(config, self.top_k_key, (depth, count), lists=self.allows_lists)
        if count > _MOST_EXPERTS:
            raise CheckpointError(
                f"config.json gives layers of {count} experts; no model has more than "
                f"{_MOST_EXPERTS}."
            )
        counts = dict.fromkeys(indices, count)
        if config.get(PER_LAYER_KEY) is not None:
            counts = per_layer_counts(config, PER_LAYER_KEY, depth, counts)
        always = self.always_selected(max(top_ks))
        for index, num in counts.items():
            if num < always:
                raise CheckpointError(
                    f"Layer {index} has {num} experts according to config.json, but the router of "
                    f"{self.label} always selects {always}."
                )
        return tuple(
            MoELayer(index, num, top_k, *self._groups(config, num, top_k))
            for index, num in counts.items()
            for top_k in (min(top_ks[index], num),)
        )

    def always_selected(self, top_k: int) -> int:
        """Experts that a router selects even where there are fewer, so that it fails; 0 if none."""
        return top_k if self.shares_top_k else self.fixed_top_k

    def _groups(self, config: Config, count: int, top_k: int) -> tuple[int, int]:
        """Number of groups, and the experts that each must keep."""
        rule = self.groups
        if rule is None or not rule.applies(config):
            return 1, 1
        groups = whole_number({rule.num_groups_key: 1, **config}, rule.num_groups_key)
        chosen = whole_number({rule.chosen_key: 1, **config}, rule.chosen_key)
        if count % groups or chosen > groups:
            raise CheckpointError(
                f"config.json gives {rule.num_groups_key} = {groups} and {rule.chosen_key} = "
                f"{chosen}, which do not fit {count} experts."
            )
        least = max(-(-top_k // chosen), rule.best_of_group)
        # One group is no restriction beyond what top_k asks for, but for a top-1 router.
        return groups, least if groups > 1 or least > top_k else 1

    def edited(self, config: Config, **values: Any) -> dict[str, Any]:
        """A copy of a whole configuration with `values` set wherever it gives the text model's."""

        def edit(part: Config, path: tuple[str, ...]) -> dict[str, Any]:
            if not path:
                return {**part, **self._under_all_names(part, values)}
            return {**part, path[0]: edit(part[path[0]], path[1:])}

        again = {
            key: {**part, **self._under_all_names(part, values)}
            for key, part in self._repeating_parts(config).items()
        }
        return {**edit(config, self.config_path), **again}

    def _under_all_names(self, part: Config, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` under every name that this part of a configuration has for them."""
        renamed: dict[str, Any] = {}
        for key, value in values.items():
            names = [
                name for name, target in self.aliases.items() if target == key and name in part
            ]
            if key in part or not names:
                names = [key, *names]
            renamed |= dict.fromkeys(names, value)
        return renamed

    def _repeating_parts(self, config: Config) -> dict[str, Config]:
        """Parts besides the text model's own that describe it once more, by their keys.

        They count experts and state its hidden size, and its depth if they state one.
        """
        text = self.text_config(config)
        return {
            key: part
            for key, part in config.items()
            if (key,) != self.config_path[:1]
            and isinstance(part, dict)
            and any(part.get(name) is not None for name in self.count_keys)
            and part.get("hidden_size", 0) == text.get("hidden_size")
            and part.get("num_hidden_layers") in (None, text.get("num_hidden_layers"))
        }

    def config_with_count(self, config: Config, count: int) -> dict[str, Any]:
        """A copy of a whole configuration whose every expert count is `count`."""

        return self._with_number(config, count, self.count_keys, self.write_count_keys)

    def config_with_top_k(self, config: Config, top_k: int | list[int]) -> dict[str, Any]:
        """A copy of a whole configuration whose routers select `top_k` experts; a list by layer."""
        if isinstance(top_k, list):
            return self.edited(config, **{self.top_k_key: top_k})
        return self._with_number(config, top_k, (self.top_k_key,), (self.top_k_key,))

    def _with_number(
        self, config: Config, number: int, keys: Iterable[str], written: Iterable[str]
    ) -> dict[str, Any]:
        """A copy with this number under those of `keys` that are there, and under `written`."""

        def numbers(part: Config) -> dict[str, Any]:
            return {
                key: [number] * len(part[key]) if isinstance(part[key], list) else number
                for key in keys
                if part.get(key) is not None
            }

        inner: Any = config
        for key in self.config_path:
            inner = inner[key]
        values = {**dict.fromkeys(written, number), **numbers(inner)}
        # Some composite configurations repeat the text model's keys at the top.
        return self.edited({**config, **numbers(config)}, **values)

    def block_module(self, layer: int, trunk: str = "") -> str:
        """Path of a layer's MoE block in the loaded model."""
        return f"{trunk or self.module_trunks[0]}.{layer}.{self.module_block}".rstrip(".")

    @property
    def parts(self) -> tuple[str, ...]:
        """Projections that an expert has: gate, up and down, or up and down."""
        gated = "gate" in self.projections or "gate_up" in self.stacked
        return PROJECTIONS if gated else PROJECTIONS[1:]

    @property
    def correction_biases(self) -> tuple[str, ...]:
        """Router tensors that decide the selection and not the gate weight."""
        others = (tensor for tensor in self.router_tensors[1:] if not tensor.is_factor)
        names = (tensor.name for tensor in others if not tensor.holds_ids)
        return tuple(name for name in names if name != f"{self.router}.bias")

    @cached_property
    def _stacks(self) -> Mapping[str, str]:
        """Name of a stacked tensor -> its projection."""
        both = (*self.stacked.items(), *self.stacked_on_disk.items())
        return {name: projection for projection, name in both}

    @cached_property
    def _patterns(self) -> Mapping[str, re.Pattern[str]]:
        """Names of tensors, anchored to the trunk: `mtp.layers.0.mlp.experts` is no layer of it."""
        # A checkpoint saved with stacked experts has the loaded model's name for the block.
        blocks = any_of({f"{name}.".lstrip(".") for name in (self.disk_block, self.module_block)})
        block = rf"(?:{any_of(self.trunks)})\.(\d+)\.(?:{blocks})"
        others = any_of(self.router_others)
        projections = any_of(self.projections.values())
        modules = any_of({name.partition(".")[0] for name in (*self._stacks, *self._router_names)})
        patterns = {
            # Groups: head, layer, expert, tail, projection's name, role.
            # Names of bitsandbytes go on behind `weight`.
            "expert": rf"({block}experts\.)(\d+)(\.({projections})\.([\w.]+))",
            # Groups: layer, name of the stack, role (None for the weight itself).
            "stacked": rf"{block}({any_of(self._stacks)})(?:[_.](\w+))?",
            # Groups: layer, name inside the block.
            "router": rf"{block}({any_of(self._router_names)})",
            # What the block itself holds, in no module of it, unless it is the layer; what lies in
            # a module of experts or of the router and depends on the experts. Group: layer.
            "block": rf"{block}\w+" if self.module_block else r"(?!)",
            "routed": rf"{block}(?!(?:{others})$)(?:experts|{modules})(?:\.|$)",
        }
        return {name: re.compile(pattern) for name, pattern in patterns.items()}

    @cached_property
    def _keys_of_projections(self) -> Mapping[str, str]:
        """The key of each projection by its name in a checkpoint."""
        return {name: key for key, name in self.projections.items()}

    @cached_property
    def _router_names(self) -> Mapping[str, RouterTensor]:
        """Every name that a router's tensor may have in a checkpoint."""
        tensors: dict[str, RouterTensor] = {}
        for tensor in self.router_tensors:
            for name in filter(None, (tensor.name, tensor.on_disk)):
                tensors[name] = tensor
                # The bias of a matrix with a row per expert has an entry per expert.
                if name.endswith(".weight"):
                    bias = name.removesuffix("weight") + "bias"
                    tensors.setdefault(bias, RouterTensor(bias))
        return tensors

    def locate(self, tensor_name: str) -> Slot | None:
        """The tensor's slot; None for a tensor that pruning leaves alone.

        Layers beyond the trunk's depth are located too: they are prediction heads.
        """
        if match := self._patterns["expert"].fullmatch(tensor_name):
            head, layer, number, tail, name, role = match.groups()
            projection = self._keys_of_projections[name]
            template = f"{head}{{expert}}{tail}"
            return Slot(int(layer), SlotKind.EXPERT, projection, int(number), template, role)
        if match := self._patterns["stacked"].fullmatch(tensor_name):
            layer, name, role = match.groups(default="weight")
            if role in _STACK_ROLES or (role == "bias" and self.has_bias):
                return Slot(int(layer), SlotKind.STACKED, self._stacks[name], role=role)
        if match := self._patterns["router"].fullmatch(tensor_name):
            tensor = self._router_names[match[2]]
            at, kind = int(match[1]), SlotKind.ROUTER
            return Slot(at, kind, role=tensor.name, axis=tensor.axis, holds_ids=tensor.holds_ids)
        return None

    def routed_layer(self, tensor_name: str) -> int | None:
        """Layer whose experts or router the tensor belongs to by its name, located or not."""
        match = self._patterns["routed"].match(tensor_name)
        return int(match[1]) if match else None

    def block_layer(self, tensor_name: str) -> int | None:
        """Layer whose block holds the tensor itself, in no module.

        In a layer with experts such a tensor is a bias that the block hands to the router; a block
        of the same name in another layer may be something else.
        """
        match = self._patterns["block"].fullmatch(tensor_name)
        return int(match[1]) if match else None
