"""A model without weights, whose layers are loaded and dropped one at a time.

The steps are those of transformers' `from_pretrained`: the same classes, conversions and
quantisers. But a tensor is read only when its layer is loaded, by byte ranges instead of mapped
files, so that address space stays small too.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import EllipsisType

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    dot_natural_key,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig, str_to_torch_dtype
from transformers.quantizers.auto import get_hf_quantizer
from transformers.utils.generic import ContextManagers

from analysis.calibration import loading
from analysis.calibration.free import free_memory, freed_at_once
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.weight_memory import WeightMemory, bytes_to_take
from analysis.checkpoint.index import TensorEntry
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families.base import SlotKind
from analysis.model.forwards import decoder_stack
from analysis.model.loaded_block import set_loaded_block
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block
from analysis.nonuniform.loading import auto_class_of

EMBEDDINGS = -1  # what runs before the first layer
HEAD = -2  # what runs after the last layer: its norm, and all else
OUTPUT = -3  # the output embeddings, which only logits need

# Of the memory that is free, for the cached pages of a model: more of it would have to be cleared
# for weights, and a verification has two models.
_CACHED = 0.4
_PLAIN = frozenset(loading.DTYPES.values())
_TORCH_TYPES: dict[str, torch.dtype] = {**str_to_torch_dtype, "F8_E8M0": torch.float8_e8m0fnu}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk that is read when indexed with `...`, as transformers' loader does."""

    folder: Path
    entry: TensorEntry
    memory: WeightMemory = field(default_factory=WeightMemory)  # that it is read into
    stays_cached: bool = False  # by the system, as it is read again soon

    def __getitem__(self, index: EllipsisType) -> Tensor:
        entry = self.entry
        flat = self.memory.empty(entry.nbytes)
        self.read_into(flat)
        return flat.view(self.dtype).reshape(entry.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype on disk."""
        return _TORCH_TYPES[self.entry.dtype]

    def get_dtype(self) -> str:
        """Safetensors name of its dtype, for transformers' loader."""
        return self.entry.dtype

    def get_shape(self) -> list[int]:
        """Its shape, for transformers' loader."""
        return list(self.entry.shape)

    def rows(self, chosen: range) -> "StoredTensor":
        """The part of it at some neighbouring places of its first axis."""
        entry = self.entry
        step = entry.nbytes // max(1, entry.shape[0])
        start = entry.start + chosen.start * step
        end = start + len(chosen) * step
        part = replace(entry, shape=(len(chosen), *entry.shape[1:]), start=start, end=end)
        return replace(self, entry=part)

    def read_into(self, target: Tensor) -> None:
        """Fill a contiguous CPU tensor of the same number of bytes."""
        if not self.entry.nbytes:
            return
        space = target.view(-1).view(torch.uint8).numpy().data
        with (self.folder / self.entry.shard).open("rb", buffering=0) as file:
            file.seek(self.entry.start)
            filled = 0
            while filled < len(space):
                count = file.readinto(space[filled:])
                if not count:
                    raise CheckpointError(f"{self.entry.shard} became shorter while it was read.")
                filled += count
            if hasattr(os, "posix_fadvise") and not self.stays_cached:
                # Cached pages of what is read once would evict what is needed again.
                os.posix_fadvise(
                    file.fileno(), self.entry.start, self.entry.nbytes, os.POSIX_FADV_DONTNEED
                )


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Tensors to load."""

    plain: dict[str, StoredTensor]  # for transformers' loader, by name
    # Parameters stacked from one tensor per expert: parameter -> part (gate and up, or down) ->
    # tensors in expert order.
    stacks: dict[str, dict[str, list[StoredTensor]]]


def _is_stack(converter: WeightConverter) -> bool:
    """Whether it only stacks experts, with the rows of at most two projections joined."""
    match converter.operations:
        case [MergeModulelist(dim=0)] | [MergeModulelist(dim=0), Concatenate(dim=1)]:
            return True
    return False


def _fits_in_cache(described: MoEModel) -> bool:
    """Whether all of a model may stay in the system's cache."""
    return described.checkpoint.nbytes <= _CACHED * free_memory()


class Skeleton:
    """The model on the meta device; `load` fills one layer, `drop` empties it.

    The experts of a layer may also be loaded apart from the rest, some at a time. Models that load
    a layer in turn may share `memory`. What is read leaves the system's cache, unless another of
    them reads it again, or a later command may: all of a model stays that is small enough.
    """

    def __init__(
        self,
        described: MoEModel,
        settings: CalibrationSettings,
        memory: WeightMemory | None = None,
        *,
        is_read_again: bool = False,
    ) -> None:
        self._described = described
        self.device = loading.resolve_device(settings.device)
        dtype = loading.DTYPES[loading.resolve_dtype(settings.dtype, described)]
        try:
            auto = auto_class_of(described)
            path, trust = described.checkpoint.path, settings.trust_remote_code
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust)
            dequantising = loading.dequantising_config(described)
            self._quantizer, config, _ = get_hf_quantizer(config, dequantising, None, True, {})
            options = {
                "dtype": dtype,
                "trust_remote_code": trust,
                **loading.attention_option(settings),
                **loading.experts_option(dtype),
            }
            is_quantized = self._quantizer is not None
            contexts = PreTrainedModel.get_init_context(dtype, is_quantized, False, False)
            with ContextManagers(contexts):
                model: PreTrainedModel = auto.from_config(config, **options)
                if is_quantized:
                    self._quantizer.preprocess_model(model=model, dtype=dtype, device_map=None)
            self.model = model.eval().requires_grad_(False)
            self._dtypes = loading.parameter_dtypes(model, dtype) if is_quantized else {}
        except loading.LOADING_ERRORS as error:
            raise loading.load_error(described, error) from error
        self._load_config = LoadStateDictConfig(
            dtype=dtype,
            dtype_plan=self.model._get_dtype_plan(dtype),
            hf_quantizer=self._quantizer,
            weight_mapping=get_model_conversion_mapping(self.model, None, self._quantizer),
            device_map={"": self.device},
        )
        # Buffers such as rotary frequencies are computed, not stored.
        self.model._move_missing_keys_from_meta_to_device(
            set(), self._load_config.device_map, None, self._quantizer
        )
        self.model._initialize_missing_keys(self._quantizer is not None)
        self.trunk, self.layers = decoder_stack(self.model, described.family)
        paths = {module: name for name, module in self.model.named_modules()}
        self._embeddings = paths[self.model.get_input_embeddings()]
        self._output = paths.get(self.model.get_output_embeddings())
        self._name = described.name
        self._memory, self._is_shared = memory or WeightMemory(), memory is not None
        self._stays_cached = is_read_again or _fits_in_cache(described)
        self.unexpected: set[str] = set()  # names in loaded parts that the model has no place for
        self._tensors: defaultdict[int, _Tensors] = defaultdict(lambda: _Tensors({}, {}))
        # By layer: parameters that hold an entry of each expert -> the shape with all of them.
        self._of_experts: defaultdict[int, dict[str, torch.Size]] = defaultdict(dict)
        self._sort_by_layer()

    def take_memory(self, layer: int) -> Iterator[int]:
        """Take the memory that the stacked experts of a layer will be read into.

        `load` would, but says nothing meanwhile. Yields the bytes taken since it last did.
        """
        if self.device.type == "cpu":  # else it is given back as soon as the device has them
            tensors = self._tensors[layer]
            self._memory.expect(self._sizes(tensors))
            yield from self._memory.take(self._stack_bytes(tensors).values())

    def memory_to_take(self, layers: Iterable[int]) -> int:
        """Bytes that `take_memory` takes for these layers, one after the other."""
        if self.device.type != "cpu":
            return 0
        return bytes_to_take(self._stack_bytes(self._tensors[layer]).values() for layer in layers)

    def load(self, layer: int, *, experts: bool = True) -> None:
        """Read the weights of one layer, or of what runs before or after the layers.

        Output embeddings tied to the others read them again. Without `experts`, the routed ones
        stay empty: see `load_experts`.
        """
        tensors = self._tensors[layer]
        if not experts:
            others = (name for name in tensors.plain if not self._is_of_expert(name))
            tensors = _Tensors({name: tensors.plain[name] for name in others}, {})
        self._fill(tensors, is_scarce=not experts)
        ends = layer in (HEAD, OUTPUT)
        if ends and any(parameter.is_meta for _, parameter in self._parameters(layer)):
            self.load(EMBEDDINGS)
            self.model.tie_weights()
        left_out = {} if experts else self._of_experts[layer]
        parameters = {
            name: parameter for name, parameter in self._parameters(layer) if name not in left_out
        }
        self._finish(parameters)
        for name, buffer in self.model.named_buffers():
            if buffer.is_meta and layer >= 0 and self._part_of(name) == layer:
                raise CheckpointError(f"{self._name} lacks the tensor {name}.")

    def experts(self, layer: int) -> nn.Module | None:
        """The experts of a layer if they can be loaded some at a time; None for a dense layer."""
        if not any(candidate.index == layer for candidate in self._described.layers):
            return None
        block = find_block(self.model, self._described.family, layer)
        experts = block and block.get_submodule("experts")
        names = self._of_experts[layer]
        if experts is None or not names or not hasattr(experts, "has_gate"):
            raise UnsupportedModelError(
                f"The experts of {self._described.family.label} do not use transformers' experts "
                "interface, so a layer is loaded whole; leave out --experts-at-once, or run where "
                "there is more memory."
            )
        return experts

    def load_experts(self, layer: int, block: range) -> None:
        """Read the weights of some experts of a layer in place of those that were there."""
        experts, tensors = self.experts(layer), self._tensors[layer]
        if experts is None:
            raise ValueError(f"layer {layer} has no experts")
        plain = {
            name: part
            for name, stored in tensors.plain.items()
            if (part := self._part_with(name, stored, block)) is not None
        }
        stacks = {
            target: {name: some[block.start : block.stop] for name, some in parts.items()}
            for target, parts in tensors.stacks.items()
        }
        read = _Tensors(plain, stacks)
        self._memory.expect(self._sizes(read))
        self.drop_experts(layer)
        for name, shape in self._of_experts[layer].items():
            self._empty(name, torch.Size((len(block), *shape[1:])))
        self._fill(read, is_scarce=True)
        own = self._of_experts[layer]
        self._finish({name: self.model.get_parameter(name) for name in own})
        set_loaded_block(experts, block)

    def drop_experts(self, layer: int) -> None:
        """Free the weights of the experts of a layer."""
        for name, shape in self._of_experts[layer].items():
            self._empty(name, shape)
        if (experts := self.experts(layer)) is not None:
            set_loaded_block(experts, None)

    def _empty(self, name: str, shape: torch.Size) -> None:
        """Put a parameter without values in place of one."""
        path, _, leaf = name.rpartition(".")
        module = self.model.get_submodule(path)
        dtype = module.get_parameter(leaf).dtype
        data = torch.empty(shape, dtype=dtype, device="meta")
        module._parameters[leaf] = nn.Parameter(data, requires_grad=False)

    def _is_of_expert(self, name: str) -> bool:
        slot = self._described.slots.get(name)
        return slot is not None and slot.kind is not SlotKind.ROUTER

    def _part_with(self, name: str, stored: StoredTensor, block: range) -> StoredTensor | None:
        """What a tensor has of some experts."""
        if not self._is_of_expert(name):
            return None
        expert = self._described.slots[name].expert
        if expert is None:
            return stored.rows(block)
        return stored if expert in block else None

    def _fill(self, tensors: _Tensors, *, is_scarce: bool) -> None:
        """Read tensors into the model; `is_scarce` memory is too small for a whole layer."""
        self._memory.expect(self._sizes(tensors))
        with freed_at_once(afterwards=is_scarce):
            self._read(tensors)
        self._memory.expect()

    def _sizes(self, tensors: _Tensors) -> Iterator[int]:
        """Bytes of the tensors that are read, one after the other where they are converted.

        What takes most comes first.
        """
        yield from sorted(self._stack_bytes(tensors).values(), reverse=True)
        plain = (stored.entry.nbytes for stored in tensors.plain.values())
        yield from sorted(plain, reverse=True)
        for target, parts in tensors.stacks.items():
            dtype = self.model.get_parameter(target).dtype
            stacked = chain.from_iterable(parts.values())
            yield from (stored.entry.nbytes for stored in stacked if stored.dtype != dtype)

    def _stack_bytes(self, tensors: _Tensors) -> dict[str, int]:
        """Parameter -> bytes, of those that are stacked from one tensor per expert."""
        return {
            target: sum(stored.entry.numel for some in parts.values() for stored in some)
            * self.model.get_parameter(target).element_size()
            for target, parts in tensors.stacks.items()
        }

    def _read(self, tensors: _Tensors) -> None:
        # Each of the loader's threads would hold a tensor and reserve address space.
        with _environment("HF_DEACTIVATE_ASYNC_LOAD", "1"):
            # The last is a plan of tensor parallelism before transformers 5.16, and an index of
            # offloaded weights from then on: neither is here.
            info, _ = convert_and_load_state_dict_in_model(
                self.model, dict(tensors.plain), self._load_config, None
            )
        if info.conversion_errors:
            first = sorted(str(problem) for problem in info.conversion_errors)[0]
            raise CheckpointError(f"{self._name}: {first} cannot be loaded.")
        self.model._adjust_missing_and_unexpected_keys(info)
        self.unexpected |= info.unexpected_keys
        loading.check_left_out(self._described, info.unexpected_keys)
        if info.mismatched_keys:
            raise loading.wrong_shape(self._name, *sorted(info.mismatched_keys)[0])
        for target, parts in tensors.stacks.items():
            self._load_stack(target, list(parts.values()))

    def _finish(self, parameters: dict[str, nn.Parameter]) -> None:
        """Check that parameters were read; cast them as if nothing was quantised."""
        for name, parameter in parameters.items():
            if parameter.is_meta:
                raise CheckpointError(f"{self._name} lacks the tensor {name}.")
            parameter.requires_grad_(False)
        if self._dtypes:
            loading.cast_parameters(parameters, self._dtypes)

    def _load_stack(self, target: str, parts: list[list[StoredTensor]]) -> None:
        """Read experts directly into place: stacking them later would hold them twice."""
        path, _, name = target.rpartition(".")
        module = self.model.get_submodule(path)
        empty = module.get_parameter(name)
        stack_ERC = self._memory.empty(empty.nbytes).view(empty.dtype).view(empty.shape)
        row = 0
        for experts in parts:
            height = experts[0].entry.shape[0]
            for expert, stored in enumerate(experts):
                place_RC = stack_ERC[expert, row : row + height]
                if len(experts) != len(stack_ERC):
                    raise CheckpointError(f"{self._name}: {stored.entry.name} does not fit.")
                if stored.entry.shape != place_RC.shape:
                    entry = stored.entry
                    raise loading.wrong_shape(self._name, entry.name, entry.shape, place_RC.shape)
                if stored.dtype == place_RC.dtype:
                    stored.read_into(place_RC)
                else:
                    place_RC.copy_(stored[...])
            row += height
        if row != stack_ERC.shape[1]:
            raise CheckpointError(f"{self._name} lacks a part of {target}.")
        module._parameters[name] = nn.Parameter(stack_ERC.to(self.device), requires_grad=False)

    @property
    def parts(self) -> list[int]:
        """What the checkpoint holds: layers, even if the model lacks them, and other parts."""
        return sorted(self._tensors)

    def stored_bytes(self, layer: int, without: Collection[str] = ()) -> int:
        """Bytes on disk of a layer, or of what runs before or after the layers.

        Tensors of the names in `without` do not count.
        """
        tensors = self._tensors[layer]
        stacked = (some for parts in tensors.stacks.values() for some in parts.values())
        stored = [*tensors.plain.values(), *chain.from_iterable(stacked)]
        return sum(tensor.entry.nbytes for tensor in stored if tensor.entry.name not in without)

    def cast(self, layer: int, dtype: torch.dtype) -> None:
        """Cast the loaded weights of a layer, and all buffers."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        for tensor in (*(parameter for _, parameter in self._parameters(layer)), *buffers):
            tensor.data = tensor.data.to(dtype)

    def drop(self, layer: int) -> None:
        """Free the weights of a layer, but for memory that the next one takes.

        Of the last layer, that goes to the last one of another model, if they share it.
        """
        following = layer + 1
        if following not in self._tensors and self._is_shared:
            following = layer
        self._memory.expect(self._sizes(self._tensors.get(following, _Tensors({}, {}))))
        for path, parameter in self._parameters(layer):
            owner, _, name = path.rpartition(".")
            empty = nn.Parameter(parameter.to("meta"), requires_grad=False)
            self.model.get_submodule(owner)._parameters[name] = empty

    def _parameters(self, layer: int) -> list[tuple[str, nn.Parameter]]:
        """Paths and parameters of a layer, of the embeddings, or of the head."""
        every = self.model.named_parameters(remove_duplicate=False)
        return [(name, parameter) for name, parameter in every if self._part_of(name) == layer]

    def _part_of(self, name: str) -> int:
        """The layer of a parameter, EMBEDDINGS, HEAD or OUTPUT."""
        if name.startswith(f"{self.trunk}."):
            return int(name.removeprefix(f"{self.trunk}.").partition(".")[0])
        if name.startswith(f"{self._embeddings}."):
            return EMBEDDINGS
        return OUTPUT if self._output and name.startswith(f"{self._output}.") else HEAD

    def _sort_by_layer(self) -> None:
        """Sort the tensors on disk by the layer that they belong to once converted."""
        mapping = self._load_config.weight_mapping or []
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        stacking = {
            pattern: converter
            for converter in converters
            if self._quantizer is None and _is_stack(converter)
            for pattern in converter.source_patterns
        }
        targets = self.model.state_dict()
        checkpoint = self._described.checkpoint
        for name in sorted(checkpoint.tensors, key=dot_natural_key):
            target, pattern = rename_source_key(
                name, renamings, converters, self.model.base_model_prefix, targets
            )
            layer = self._part_of(target)
            entry = checkpoint.tensors[name]
            stored = StoredTensor(checkpoint.path, entry, self._memory, self._stays_cached)
            plain = target in targets and stored.dtype in _PLAIN
            if pattern in stacking and plain and targets[target].dtype in _PLAIN:
                # Parts in the order in which they are joined, whatever their order on disk.
                parts = self._tensors[layer].stacks.setdefault(
                    target, {part: [] for part in stacking[pattern].source_patterns}
                )
                parts[pattern].append(stored)
            else:
                self._tensors[layer].plain[name] = stored
            if target in targets and self._is_of_expert(name):
                self._of_experts[layer][target] = targets[target].shape


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
