"""MoEModel: what a checkpoint is, from its configuration and headers alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from analysis.checkpoint import Checkpoint, TensorEntry, open_checkpoint
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families import PROJECTIONS, MoEFamily, MoELayer, Slot, SlotKind, family_of
from analysis.families.base import whole_number

DEMO_MODEL = "demo"
DEMO_CHECKPOINT = Path(__file__).parent / "demo" / "checkpoint"
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*", "NOTICE*"]


@dataclass(frozen=True, slots=True)
class LocatedTensor:
    """A tensor that depends on the experts, and its slot."""

    entry: TensorEntry
    slot: Slot


@dataclass(frozen=True, eq=False)
class MoEModel:
    """A checkpoint understood as a grid of experts.

    Args:
        name: the directory's name, or the hub id.
        checkpoint: its index.
        family: its architecture.
        layers: its sparse layers.
    """

    name: str
    checkpoint: Checkpoint
    family: MoEFamily
    layers: tuple[MoELayer, ...]

    @property
    def identity(self) -> str:
        """See `Checkpoint.identity`."""
        return self.checkpoint.identity

    @property
    def num_experts(self) -> int:
        """Routed experts of all layers."""
        return sum(layer.num_experts for layer in self.layers)

    @cached_property
    def located(self) -> Mapping[int, tuple[LocatedTensor, ...]]:
        """Expert and router tensors by layer, in checkpoint order."""
        by_layer: defaultdict[int, list[LocatedTensor]] = defaultdict(list)
        for entry in self.checkpoint.tensors.values():
            if slot := self.family.locate(entry.name):
                by_layer[slot.layer].append(LocatedTensor(entry, slot))
        return {layer: tuple(found) for layer, found in by_layer.items()}

    @property
    def dtype(self) -> str:
        """Safetensors name of the experts' element type."""
        first = self.located[self.layers[0].index]
        return next(item.entry.dtype for item in first if item.slot.kind is not SlotKind.ROUTER)

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return whole_number(self.checkpoint.config, "hidden_size")


def _check_layer(layer: MoELayer, found: Sequence[LocatedTensor]) -> None:
    seen = {(item.slot.expert, item.slot.projection) for item in found}
    stacked = {item.slot.projection: item for item in found if item.slot.kind is SlotKind.STACKED}
    if stacked:
        wanted: set[tuple[int | None, str]] = {(None, "gate_up"), (None, "down")}
        for item in stacked.values():
            if item.entry.shape[0] != layer.num_experts:
                raise CheckpointError(
                    f"{item.entry.name} holds {item.entry.shape[0]} experts, but config.json says "
                    f"{layer.num_experts}."
                )
    else:
        wanted = {
            (expert, projection)
            for expert in range(layer.num_experts)
            for projection in PROJECTIONS
        }
        extra = sorted(e for e, _ in seen if e is not None and e >= layer.num_experts)
        if extra:
            raise CheckpointError(
                f"Layer {layer.index} holds an expert {extra[-1]}, but config.json says "
                f"{layer.num_experts} experts (0..{layer.num_experts - 1})."
            )
    missing = sorted(wanted - seen, key=str)
    if missing:
        expert, projection = missing[0]
        what = f"expert {expert}'s {projection}" if expert is not None else f"stacked {projection}"
        raise CheckpointError(
            f"Layer {layer.index} lacks the {what} projection ({len(missing)} such tensors "
            "missing); is a shard missing or an index out of date?"
        )
    _check_router(layer, found)


def _check_router(layer: MoELayer, found: Sequence[LocatedTensor]) -> None:
    routers = [item.entry for item in found if item.slot.kind is SlotKind.ROUTER]
    if not routers:
        raise CheckpointError(f"Layer {layer.index} has no router tensor.")
    for entry in routers:
        if entry.shape[0] != layer.num_experts:
            raise CheckpointError(
                f"{entry.name} has {entry.shape[0]} rows, but config.json says "
                f"{layer.num_experts} experts."
            )


def describe_model(checkpoint: Checkpoint, *, name: str = "") -> MoEModel:
    """Understand a checkpoint, and check that every expert that it should hold is there.

    Raises:
        UnsupportedModelError: dense, or not in the table of families.
        CheckpointError: tensors and configuration do not agree.
    """
    family = family_of(checkpoint.config)
    layers = family.layers(checkpoint.config)
    if not layers:
        raise UnsupportedModelError(
            f"Every layer of this {family.label} model is dense according to its config.json, so "
            "there is nothing to prune."
        )
    model = MoEModel(name or checkpoint.path.name, checkpoint, family, layers)
    for layer in layers:
        _check_layer(layer, model.located.get(layer.index, ()))
    return model


def resolve_model(model: str, *, revision: str | None = None) -> Path:
    """Local directory of MODEL: a directory, `demo`, or a hub id (fetched into the hub's cache).

    Raises:
        CheckpointError: neither a directory nor a hub id that can be fetched.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model == DEMO_MODEL:
        return DEMO_CHECKPOINT
    if path.is_absolute() or model.startswith(".") or model.count("/") != 1:
        raise CheckpointError(
            f"{model} is not a directory; give the folder of a checkpoint, a hub id such as "
            f"allenai/OLMoE-1B-7B-0125-Instruct, or {DEMO_MODEL!r}."
        )
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{model} is not a local directory and cannot be fetched from the hub: {reason}"
        ) from error


def load_model_index(model: str, *, revision: str | None = None) -> MoEModel:
    """`resolve_model`, `open_checkpoint` and `describe_model` in one call."""
    path = resolve_model(model, revision=revision)
    if path.resolve() == DEMO_CHECKPOINT.resolve():
        name = DEMO_MODEL  # also where it was named by its path, as jobs do
    else:
        name = path.name if Path(model).expanduser().exists() else model
    return describe_model(open_checkpoint(path), name=name or path.resolve().name)
