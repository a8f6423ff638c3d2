"""MoEModel: describes a checkpoint from its configuration and headers alone."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

from analysis.checkpoint.companions import COMPANION_FILES
from analysis.checkpoint.fp8 import block_shape
from analysis.checkpoint.hub import fetched
from analysis.checkpoint.index import CONFIG_NAME, Checkpoint, Config, TensorEntry, open_checkpoint
from analysis.checkpoint.weight_files import INDEX_NAME
from analysis.errors import CheckpointError, UnsupportedModelError, did_you_mean
from analysis.families import MoEFamily, MoELayer, Slot, SlotKind, family_of
from analysis.families.base import PER_LAYER_KEY
from analysis.families.rules import whole_number
from analysis.files.home import from_home
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.other_files import OtherFile, files_beside

# Quantised weights have other names: MXFP4, GPTQ and AWQ, compressed-tensors.
_WEIGHT_ROLES = ("weight", "blocks", "qweight", "weight_packed")
# Parts of quantised weights: scales and the like hold no weights, a byte of MXFP4, NVFP4 or
# bitsandbytes' nf4 holds two, an integer of GPTQ, AWQ or compressed-tensors as many as fit.
_SCALES = re.compile(
    r".+[._](scales?|scale_inv|scale_2|qzeros|zero_point|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state\.\w+|SCB|weight_format)"
)
_PACKED = re.compile(r".+\.(qweight|weight_packed)")
_PACKED_BITS = 4
# Quantisations that are undone on loading; checkpoints with others cannot be loaded.
DEQUANTISED = ("fp8", "mxfp4")
# Why not, of those that transformers puts in place of linear layers.
_UNREAD = dict.fromkeys(("awq", "gptq"), "transformers packs linear layers, and it stacks experts")
# What names of experts have in common, in whatever layout.
_EXPERTS = re.compile(r".*((?<!shared_)experts?\b|switch_mlp).*")
# A part of such a name -> whose layout it is of, and what works instead.
_LAYOUTS = {
    ".switch_mlp.": ("MLX's", "prune the model that it was made from, and convert the export"),
    ".up_gate_proj.": ("Paddle's", "ERNIE is published for transformers under names with -PT"),
}
DEMO_MODEL = "demo"
_HUB_URL = re.compile(r"(?:hf://|(?:https?://)?(?:huggingface|hf)\.co/)([\w.-]+/[\w.-]+)(?:/.*)?")
# The embedding and the head, which may be tied to it.
EMBEDDING, OUTPUT_HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUANTISED = "quantization_config"
# The card names the licence.
_HUB_FILES = ("*.safetensors", CONFIG_NAME, INDEX_NAME, "README.md", *COMPANION_FILES)
# The same weights once more in the publisher's own format, as gpt-oss and Mistral have them: shards
# are never read from folders, and `*` also stands for one.
_HUB_COPIES = ["*/*.safetensors", "consolidated*.safetensors"]


@dataclass(frozen=True, slots=True)
class LocatedTensor:
    """An expert or router tensor, and its slot."""

    entry: TensorEntry
    slot: Slot


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The model that something belongs to."""

    name: str  # the directory's name, or the hub id; for display
    identity: str  # see `Checkpoint.identity`; this is what is compared


@dataclass(frozen=True, eq=False)
class MoEModel:
    """A checkpoint as a grid of experts."""

    name: str  # the directory's name, or the hub id
    checkpoint: Checkpoint
    family: MoEFamily
    layers: tuple[MoELayer, ...]  # the sparse ones

    @property
    def identity(self) -> str:
        """See `Checkpoint.identity`."""
        return self.checkpoint.identity

    @property
    def cache_key(self) -> tuple[str, str, str]:
        """What is in it, its name and its place."""
        return (self.identity, self.name, str(self.checkpoint.path))

    @property
    def num_experts(self) -> int:
        """Routed experts of all layers."""
        return sum(layer.num_experts for layer in self.layers)

    @property
    def config(self) -> Config:
        """The text model's part of `config.json`, with defaults filled in."""
        return self.family.text_config(self.checkpoint.config)

    @cached_property
    def depth(self) -> int:
        """Layers of the trunk, dense ones included."""
        return self.family.depth(self.config)

    @cached_property
    def other_files(self) -> tuple[OtherFile, ...]:
        """Safetensors files of its folder that no index lists, in the order of their names."""
        return tuple(file for file, _ in files_beside(self.checkpoint, self.family, self.depth))

    @cached_property
    def located(self) -> Mapping[int, tuple[LocatedTensor, ...]]:
        """Expert and router tensors by layer, in checkpoint order.

        Layers from `depth` on are prediction heads.
        """
        by_layer: defaultdict[int, list[LocatedTensor]] = defaultdict(list)
        for entry in self.checkpoint.tensors.values():
            if slot := self.family.locate(entry.name):
                by_layer[slot.layer].append(LocatedTensor(entry, slot))
        return {layer: tuple(items) for layer, items in by_layer.items()}

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Slots of the expert and router tensors, by name."""
        return {item.entry.name: item.slot for items in self.located.values() for item in items}

    @cached_property
    def unlocated(self) -> tuple[TensorEntry, ...]:
        """All other tensors, in checkpoint order."""
        return tuple(e for e in self.checkpoint.tensors.values() if e.name not in self.slots)

    @property
    def dtype(self) -> str:
        """Safetensors name of the experts' dtype."""
        first = self.located[self.layers[0].index]
        return next(item.entry.dtype for item in first if is_expert_weight(item.slot))

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return whole_number(self.config, "hidden_size")

    @property
    def streams_size(self) -> int:
        """Width of all residual streams that a layer hands on; most models have one."""
        key = self.family.streams_key
        return self.hidden_size * (whole_number(self.config, key) if key in self.config else 1)

    @cached_property
    def quantisation(self) -> str:
        """transformers' name of the quantisation; empty if there is none."""
        settings = self.quantisation_settings
        return str(settings.get("quant_method", "unknown") if settings else "")

    @property
    def quantisation_settings(self) -> Config:
        """What config.json says of the quantisation; empty if there is none."""
        candidates = (each.get(QUANTISED) for each in (self.checkpoint.config, self.config))
        settings: object = next(filter(None, candidates), {})
        if not isinstance(settings, Mapping):
            raise CheckpointError(
                f"{QUANTISED} in config.json is {settings!r}; it needs an object, such as "
                '{"quant_method": "fp8"}.'
            )
        return settings

    @cached_property
    def unloadable(self) -> str:
        """Why its quantised weights cannot be loaded, on one line; empty if they can."""
        if self.quantisation and self.quantisation not in DEQUANTISED:
            why = _UNREAD.get(self.quantisation, f"only {' and '.join(DEQUANTISED)} are tried")
            return f"checkpoints quantised with {self.quantisation} cannot be loaded: {why}"
        for name, slot in self.slots.items() if self.quantisation == "fp8" else ():
            if slot.kind is SlotKind.STACKED and slot.role.endswith("scale_inv"):
                # Its dequantisation looks for scales of `weight`; others it leaves out in silence.
                return (
                    f"transformers would take the stacked experts of FP8 without their scales "
                    f"({name}); use the model in bfloat16"
                )
        for entry, grid in self._scaled():
            if not block_shape(entry.shape, grid.shape, self.stated_block):
                return (
                    f"{entry.name} cannot be dequantised: {list(entry.shape)} does not divide into "
                    f"its {list(grid.shape)} scales, evenly or by `weight_block_size`; use the "
                    "model in bfloat16"
                )
        return ""

    @cached_property
    def cut_blocks(self) -> str:
        """Why transformers alone cannot dequantise it, on one line; empty if it can.

        It derives blocks from the shapes, so that a last block that is cut is an error, or, where
        the shapes divide, takes wrong scales in silence.
        """
        for entry, grid in self._scaled():
            block = block_shape(entry.shape, grid.shape, self.stated_block)
            if block and block != block_shape(entry.shape, grid.shape, None):
                return (
                    f"transformers cannot dequantise {entry.name}: {list(entry.shape)} does not "
                    f"divide into its {list(grid.shape)} scales by blocks of {list(block)}"
                )
        return ""

    @cached_property
    def stated_block(self) -> tuple[int, int] | None:
        """Rows and columns that share an FP8 scale, as config.json states them; None if not."""
        match self.quantisation_settings.get("weight_block_size"):
            case [int(rows), int(columns)] if rows > 0 and columns > 0:
                return rows, columns
        return None

    def _scaled(self) -> Iterator[tuple[TensorEntry, TensorEntry]]:
        """Matrices of FP8 and their scales."""
        for name, entry in self.checkpoint.tensors.items():
            grid = self.checkpoint.tensors.get(f"{name}_scale_inv")
            if grid is not None and len(grid.shape) == len(entry.shape) and 0 not in grid.shape:
                yield entry, grid

    def num_weights(self, entry: TensorEntry) -> int:
        """Number of weights in a tensor: its elements, unless it is part of a quantised one."""
        if entry.dtype == "I32" and _PACKED.fullmatch(entry.name) and self.quantisation:
            return entry.numel * 32 // self._packed_bits
        if entry.dtype in ("I64", "I32"):  # ids, in tables of tokens
            return 0
        if not self.quantisation:
            return entry.numel
        if _SCALES.fullmatch(entry.name):
            return 0
        in_pairs = entry.dtype == "U8" or (entry.dtype == "I8" and self.has_fp4)
        return entry.numel * (2 if in_pairs else 1)

    @cached_property
    def has_fp4(self) -> bool:
        """Whether a byte of an expert holds two weights, as in DeepSeek-V4."""
        configs = (self.quantisation_settings, self.checkpoint.config, self.config)
        return any(each.get("expert_dtype") == "fp4" for each in configs)

    @cached_property
    def _packed_bits(self) -> int:
        """Bits per weight of those packed into an integer."""
        groups = (self.quantisation_settings.get("config_groups") or {}).values()
        inner = ((group.get("weights") or {}).get("num_bits") for group in groups)
        bits = next(filter(None, (self.quantisation_settings.get("bits"), *inner)), _PACKED_BITS)
        return bits if type(bits) is int and 1 <= bits <= 32 else _PACKED_BITS

    @cached_property
    def num_params(self) -> int:
        """Weights on disk; tied ones count once."""
        return sum(map(self.num_weights, self.checkpoint.tensors.values()))

    @property
    def tied_embedding(self) -> TensorEntry | None:
        """The embedding, if it is also the head and engines of the family need a separate one."""
        tensors = self.checkpoint.tensors
        is_tied = self.family.needs_own_head and self.config.get("tie_word_embeddings")
        return tensors.get(EMBEDDING) if is_tied and OUTPUT_HEAD not in tensors else None

    @property
    def expert_output_size(self) -> int:
        """Width of an expert's output: of the residual stream, or of a latent space."""
        key = self.family.output_size_key
        return whole_number(self.config, key) if key in self.config else self.hidden_size


def is_expert_weight(slot: Slot) -> bool:
    """Whether a tensor holds weights of one or all experts, quantised or not, and not scales."""
    return slot.kind is not SlotKind.ROUTER and slot.role in _WEIGHT_ROLES


def _check_extents(layer: MoELayer, items: Sequence[LocatedTensor]) -> None:
    """Check that the tensors have as many experts as the configuration says."""
    last = max((item.slot.expert or 0 for item in items), default=0)
    if last >= layer.num_experts:
        raise CheckpointError(
            f"Layer {layer.index} holds an expert {last}, but config.json says "
            f"{layer.num_experts} experts (0..{layer.num_experts - 1})."
        )
    for entry, slot in ((item.entry, item.slot) for item in items):
        if slot.holds_ids:  # as many rows as there are tokens
            continue
        count = entry.shape[slot.axis] if slot.axis < len(entry.shape) else 0
        if slot.kind is not SlotKind.EXPERT and count != layer.num_experts:
            what = f"has {count} rows" if slot.kind is SlotKind.ROUTER else f"holds {count} experts"
            raise CheckpointError(
                f"{entry.name} {what}, but config.json says {layer.num_experts} experts."
            )


def describe_model(checkpoint: Checkpoint, *, name: str = "") -> MoEModel:
    """Describe a checkpoint, and check that every expert is present."""
    shapes = {entry.name: entry.shape for entry in checkpoint.tensors.values()}
    family = family_of(checkpoint.config, shapes)
    layers = family.layers(checkpoint.config)
    if not layers:
        raise UnsupportedModelError(
            f"Every layer of this {family.label} model is dense according to its config.json, so "
            "there is nothing to prune."
        )
    depth = family.depth(family.text_config(checkpoint.config))
    other_files = files_beside(checkpoint, family, depth)
    heads = tuple(shard for file, shard in other_files if file.is_read)
    checkpoint = replace(checkpoint, shards=(*checkpoint.shards, *heads))
    model = MoEModel(name or checkpoint.path.name, checkpoint, family, layers)
    check_layers(model)
    return model


def check_layers(model: MoEModel) -> None:
    """Refuse a model that does not hold every expert that it should."""
    family = model.family
    names = (entry.name for entry in model.unlocated if model.quantisation)
    # Name of a quantised matrix outside of the experts -> that of its scales.
    scales = {
        f"{name.rpartition('.')[0]}.weight": name for name in names if _SCALES.fullmatch(name)
    }
    for layer in model.layers:
        items = model.located.get(layer.index, ())
        experts = [item for item in items if item.slot.kind is not SlotKind.ROUTER]
        _check_extents(layer, experts)
        weights = [item.slot for item in experts if is_expert_weight(item.slot)]
        in_stacks = any(slot.kind is SlotKind.STACKED for slot in weights)
        if in_stacks or not family.projections:
            expected: set[tuple[int | None, str]] = {(None, part) for part in family.stacked}
        else:
            expected = set(product(range(layer.num_experts), family.projections))
        missing = sorted(expected - {(slot.expert, slot.projection) for slot in weights}, key=str)
        routers = [item for item in items if item.slot.kind is SlotKind.ROUTER]
        if missing:
            _check_count(layer, weights, routers)
            if not weights:
                _check_names(model, layer)
            expert, projection = missing[0]
            owner = "stacked" if expert is None else f"expert {expert}'s"
            raise CheckpointError(
                f"Layer {layer.index} lacks the {owner} {projection} projection ({len(missing)} "
                "such tensors missing); is a shard missing or an index out of date?"
            )
        if not any(item.slot.role == family.router_tensors[0].name for item in routers):
            raise _without_router(model, layer.index)
        # bitsandbytes leaves the name, and flattens the matrix if it packs 4 bits.
        for name, dtype in ((item.entry.name, item.entry.dtype) for item in routers):
            is_packed = dtype in ("U8", "I8")
            if is_packed or name in scales:
                raise _quantised_router(layer.index, name if is_packed else scales[name])
        _check_extents(layer, routers)


def _check_count(
    layer: MoELayer, weights: Sequence[Slot], routers: Sequence[LocatedTensor]
) -> None:
    """Refuse a layer whose experts and router agree on another number than config.json's."""
    ids = {slot.expert for slot in weights}
    rows = {item.entry.shape[0] for item in routers if item.slot.role.endswith(".weight")}
    if len(ids) != layer.num_experts and rows == {len(ids)} and ids == set(range(len(ids))):
        raise CheckpointError(
            f"Layer {layer.index} holds {len(ids)} experts and its router a row for each, but "
            f"config.json says {layer.num_experts}; correct that number, or, where layers differ, "
            f"add {PER_LAYER_KEY}, a list of every layer's (0 for a dense one)."
        )


def _check_names(model: MoEModel, layer: MoELayer) -> None:
    """Refuse a layer whose experts have other names than in transformers, if they are there.

    By a tensor of the layer that is of experts by its name, or by any if there is no layer as in
    transformers.
    """
    trunks, names = model.family.trunks, [entry.name for entry in model.unlocated]
    has_trunk = any(name.startswith(tuple(f"{trunk}." for trunk in trunks)) for name in names)
    prefixes = tuple(f"{trunk}.{layer.index}." for trunk in trunks) if has_trunk else ("",)
    of_experts = (name for name in names if name.startswith(prefixes) and _EXPERTS.match(name))
    if name := next(of_experts, "" if has_trunk else next(iter(names), "")):
        hints = (hint for part, hint in _LAYOUTS.items() if part in name)
        owner, remedy = next(hints, ("another", "use the checkpoint published for transformers"))
        raise UnsupportedModelError(
            f"The experts of layer {layer.index} are not named as in transformers' "
            f"{model.family.label}: the checkpoint has {name}, which is {owner} layout; {remedy}, "
            "or convert the checkpoint to the names and shapes of transformers."
        )


def _without_router(model: MoEModel, layer: int) -> CheckpointError | UnsupportedModelError:
    names = (
        entry.name
        for entry in model.unlocated
        if ".experts." not in entry.name and model.family.routed_layer(entry.name) == layer
    )
    if model.quantisation and (name := next(names, "")):
        return _quantised_router(layer, name)
    return CheckpointError(f"Layer {layer} has no router tensor.")


def _quantised_router(layer: int, name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The router of layer {layer} is quantised ({name}), and no expert's part can be cut out "
        "of packed rows; use a checkpoint that leaves routers out of the quantisation."
    )


def resolve_model(model: str, *, revision: str | None = None) -> Path:
    """Local directory of MODEL: a directory, `demo`, or a hub id (fetched into the hub's cache)."""
    path = from_home(model)
    if path.exists() or model == DEMO_MODEL:
        _check_revision(model, revision)
        return path if path.exists() else DEMO_CHECKPOINT
    if path.is_absolute() or model.startswith(".") or model.count("/") != 1:
        if hub_id := _HUB_URL.fullmatch(model):
            raise CheckpointError(f"{model} is a URL; give its hub id, {hub_id[1]}.")
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        names = {DEMO_MODEL, *(str(each) for each in siblings if each.is_dir())}
        raise CheckpointError(
            f"{model} is not a directory; give the folder of a checkpoint, a hub id such as "
            f"allenai/OLMoE-1B-7B-0125-Instruct, or {DEMO_MODEL!r}."
            f"{did_you_mean(str(path), names)}"
        )
    from huggingface_hub import snapshot_download

    fetch = partial(
        snapshot_download,
        model,
        revision=revision,
        allow_patterns=list(_HUB_FILES),
        ignore_patterns=_HUB_COPIES,
    )
    return fetched(model, fetch)


def _check_revision(model: str, revision: str | None) -> None:
    if revision:
        raise CheckpointError(
            f"{model} is a local folder, and --revision {revision} is for hub ids; leave it out."
        )


def is_hub_id(source: str) -> bool:
    """Whether a source of models is the id of one on the hub, and no folder or file here."""
    is_local = source.startswith((".", "/")) or from_home(source).exists()
    return source.count("/") == 1 and not is_local


def config_folder(source: str, revision: str | None = None) -> Path:
    """The folder of a config.json, given by its path, its folder, `demo` or a hub id."""
    path = from_home(source)
    if path.exists() or source == DEMO_MODEL:
        _check_revision(source, revision)
    if path.is_file() and path.name == CONFIG_NAME:
        return path.parent
    if source == DEMO_MODEL and not path.exists():
        return DEMO_CHECKPOINT
    if not is_hub_id(source):
        return path
    from huggingface_hub import hf_hub_download

    return fetched(source, partial(hf_hub_download, source, CONFIG_NAME, revision=revision)).parent


def load_model_index(model: str, *, revision: str | None = None) -> MoEModel:
    """`resolve_model`, `open_checkpoint` and `describe_model` in one call."""
    path = resolve_model(model, revision=revision)
    if path.resolve() == DEMO_CHECKPOINT.resolve():
        name = DEMO_MODEL  # also if it is given by its path, as in jobs
    else:
        name = path.name if from_home(model).exists() else model
    return describe_model(open_checkpoint(path), name=name or path.resolve().name)
