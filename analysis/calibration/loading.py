"""Load the model and the tokenizer of a checkpoint."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoTokenizer,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedModel,
)
from transformers.core_model_loading import build_glob_alternation

from analysis.calibration.free import freed_at_once
from analysis.checkpoint.aligned import align_weights
from analysis.checkpoint.companions import missing_code, tokenizer_code
from analysis.checkpoint.index import CONFIG_NAME
from analysis.corpora.early import check_quantisation, check_vocabulary, without_tokenizer
from analysis.corpora.tokens import Tokenizer
from analysis.errors import CheckpointError, StatsError, UnsupportedModelError, first_line
from analysis.families.native import register_native
from analysis.families.needs import why_too_old
from analysis.files.home import from_home
from analysis.machine.launcher import launched_world, local_rank
from analysis.model.loadable import unloadable
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from analysis.stats.columns import Group, misfit

# Quantised checkpoints are dequantised, so that statistics are the same with and without an
# accelerator: kernels that compute in fewer bits round activations too.
DEQUANTISED_TYPE = "bfloat16"
_METHODS: Mapping[str, Callable[[], Any]] = {
    "fp8": lambda: FineGrainedFP8Config(dequantize=True),
    "mxfp4": lambda: Mxfp4Config(dequantize=True),
}

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# What transformers may raise while it loads: it does not validate every value of a configuration.
LOADING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    StrictDataclassError,
    safetensors.SafetensorError,
)
_SAYING = (ImportError, OSError, RuntimeError, ValueError, StrictDataclassError)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights and hidden states are kept during a run; changes no number."""

    # accelerate's "auto", "balanced", ..., which spread the weights over devices, memory and disk;
    # empty: all on one device.
    device_map: str = ""
    max_memory: tuple[tuple[str, str], ...] = ()  # per device: ("0", "20GiB"), ("cpu", "8GiB")
    offload_folder: Path | None = None  # for weights that fit nowhere else
    stream_layers: bool = False  # load one layer at a time and run all tokens through it
    experts_at_once: int = 0  # of a streamed layer; 0: as many as fit
    hidden_states_dir: Path | None = None  # of a streamed run; None: in memory while small
    checkpoint_activations: bool = False  # for gradients: keep only each layer's input, recompute


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """How a calibration is run."""

    seq_len: int  # tokens in a sequence
    seed: int = 42  # of the order of documents
    dtype: str = "auto"  # of the computation; "auto" is the checkpoint's
    device: str = "auto"  # "cpu", "cuda", ...; "auto" is an accelerator if there is one
    batch_size: int = 8  # sequences in one forward; changes the numbers by rounding only
    trust_remote_code: bool = False  # run code that comes with the checkpoint
    groups: tuple[Group, ...] = ("routed",)  # statistics to collect
    attention: str = "auto"  # "eager", "sdpa", ...; "auto" leaves it to transformers
    placement: Placement = Placement()

    def __post_init__(self) -> None:
        place = self.placement
        problem = misfit(
            self.groups,
            streams_layers=place.stream_layers,
            checkpoints=place.checkpoint_activations,
        )
        if problem:
            raise StatsError(f"{problem[:1].upper()}{problem[1:]}.")


def attention_option(settings: CalibrationSettings) -> dict[str, str]:
    """transformers' argument for the attention implementation; empty to let it choose."""
    if settings.attention == "auto":
        return {}
    return {"attn_implementation": settings.attention}


def experts_option(dtype: torch.dtype | str) -> dict[str, str]:
    """transformers' argument for the experts implementation; empty to let it choose.

    Its usual one, grouped products, supports no float64.
    """
    return {"experts_implementation": "eager"} if dtype is torch.float64 else {}


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" prefers an accelerator.

    Unless the name has a number, each of several processes on a machine gets its own device.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        # Apple's accelerator has no float64, which the sums need.
        name = "cuda" if accelerator and accelerator.type == "cuda" else "cpu"
    if name == "cuda" and launched_world() > 1:
        name = f"cuda:{local_rank()}"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"The device {name!r} is not available here; try cpu.") from error


def resolve_dtype(name: str, model: MoEModel) -> str:
    """The dtype of the computation, by name."""
    stored = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
    resolved = name
    if name == "auto":
        resolved = DEQUANTISED_TYPE if model.quantisation else stored.get(model.dtype, model.dtype)
    if resolved not in DTYPES:
        raise CheckpointError(
            f"Cannot compute in {resolved!r}; use one of auto, {', '.join(DTYPES)}."
        )
    return resolved


def load_tokenizer(
    model: MoEModel,
    *,
    trust_remote_code: bool = False,
    instead: str = "use a corpus of input_ids",
) -> Tokenizer:
    """The checkpoint's own tokenizer; `instead` is what works without one."""
    check_vocabulary(model, instead, trusted=trust_remote_code)
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            model.checkpoint.path, trust_remote_code=trust_remote_code, verbose=False
        )
    except Exception as error:  # tokenizers raises bare exceptions, transformers almost any
        problem = without_tokenizer(model, instead)
        if code := tokenizer_code(model.checkpoint.path):
            how = "cannot be loaded" if trust_remote_code else "needs --trust-remote-code"
            problem = (
                f"The tokenizer of {model.name}, which is code ({', '.join(code)}), {how} "
                f"({first_line(error)}){f'; {instead}' if instead else ''}."
            )
        raise CheckpointError(problem) from error
    return tokenizer


@contextmanager
def offload_space(placement: Placement) -> Iterator[Path | None]:
    """A temporary folder for weights that fit nowhere else."""
    if placement.offload_folder is None:
        yield None
        return
    folder = from_home(placement.offload_folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="moeprune-offload-", dir=folder) as name:
        yield Path(name)


def load_model(
    model: MoEModel, settings: CalibrationSettings, offload: Path | None = None
) -> PreTrainedModel:
    """The model in evaluation mode; `offload` is a folder for weights that fit nowhere else."""
    place, device = settings.placement, resolve_device(settings.device)
    dtype = DTYPES[resolve_dtype(settings.dtype, model)]
    map_options: dict[str, Any] = {"device_map": None if device.type == "cpu" else {"": device}}
    if place.device_map:
        # accelerate counts devices by number and knows "cpu" and "disk" by name.
        limits = {int(key) if key.isdigit() else key: size for key, size in place.max_memory}
        map_options = {
            "device_map": place.device_map,
            "max_memory": limits or None,
            "offload_folder": offload,
        }
    try:
        with freed_at_once():
            loaded, info = auto_class_of(model).from_pretrained(
                model.checkpoint.path,
                dtype=dtype,
                quantization_config=dequantising_config(model),
                trust_remote_code=settings.trust_remote_code,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused here, by name
                **attention_option(settings),
                **experts_option(dtype),
                **map_options,
            )
    except LOADING_ERRORS as error:
        raise load_error(model, error) from error
    if info["missing_keys"]:
        raise CheckpointError(f"{model.name} lacks the tensor {sorted(info['missing_keys'])[0]}.")
    check_left_out(model, info["unexpected_keys"])
    if info["mismatched_keys"]:
        raise wrong_shape(model.name, *sorted(info["mismatched_keys"])[0])
    if model.quantisation:
        cast_as_plain(loaded, dtype)
    align_weights(loaded)
    loaded.requires_grad_(False)
    ready: PreTrainedModel = loaded.eval()
    return ready


def check_left_out(model: MoEModel, names: Iterable[str]) -> None:
    """Refuse a model whose experts or routers have tensors among those that transformers left out.

    It may leave out others, and those of prediction heads.
    """
    located = ((name, model.family.locate(name)) for name in sorted(names))
    if unread := [name for name, slot in located if slot and slot.layer < model.depth]:
        raise UnsupportedModelError(
            f"{model.name} cannot be loaded: transformers leaves out {unread[0]}, which belongs to "
            f"experts or a router ({len(unread)} such tensors)."
        )


def parameter_dtypes(blank: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Parameter -> dtype in which transformers loads it if nothing is quantised.

    `blank` was made in `dtype`, and nothing was loaded into it.
    """
    plan = blank._get_dtype_plan(dtype)
    single = build_glob_alternation(list(plan))[0] if plan else None  # those kept in float32
    return {
        name: torch.float32 if single and single.search(name) else parameter.dtype
        for name, parameter in blank.named_parameters(remove_duplicate=False)
    }


def cast_as_plain(loaded: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast a dequantised model as transformers casts one that was never quantised.

    transformers dequantises to `dtype`, but leaves other matrices of such a checkpoint in their
    dtype on disk.
    """
    with torch.device("meta"):
        blank = type(loaded)._from_config(loaded.config, dtype=dtype)
    cast_parameters(dict(loaded.named_parameters()), parameter_dtypes(blank, dtype))


def cast_parameters(
    loaded: Mapping[str, torch.nn.Parameter], dtypes: Mapping[str, torch.dtype]
) -> None:
    """Cast parameters to these dtypes, see `cast_as_plain`."""
    for name, parameter in loaded.items():
        if parameter.dtype != dtypes[name]:
            parameter.data = parameter.data.to(dtypes[name])


def load_error(model: MoEModel, error: Exception) -> CheckpointError:
    """transformers' error in one line."""
    reason = first_line(error)
    if isinstance(error, StrictDataclassError):  # the error behind it names the key and the value
        reason = f"{CONFIG_NAME}: {first_line(error.__cause__ or error)}"
    elif str(error).strip() and not isinstance(error, _SAYING):
        # Such as the key of a KeyError, which alone says little.
        reason = f"{type(error).__name__} {reason}"
    return CheckpointError(f"transformers cannot load {model.name}: {reason}")


def wrong_shape(
    model: str, tensor: str, stored: Iterable[int], expected: Iterable[int]
) -> CheckpointError:
    """The error for a tensor of another shape than the configuration asks for."""
    return CheckpointError(
        f"{model} holds {tensor} in the shape {tuple(stored)}, and its {CONFIG_NAME} asks for "
        f"{tuple(expected)}; fetch the checkpoint again."
    )


def why_not_loaded(model: MoEModel, *, trusted: bool = False) -> str:
    """Why a checkpoint cannot be loaded, without a full stop; empty if it can.

    If `trusted`, code that comes with it may be run and may define the class.
    """
    if why := why_too_old(model.family):
        return why
    register_native(model.family.model_type)
    own_code = trusted and model.checkpoint.config.get("auto_map")
    if not own_code and model.family.model_type not in CONFIG_MAPPING:
        return f"transformers has no class for {model.family.model_type!r}"
    return unloadable(model)


def check_loadable(model: MoEModel, *, trusted: bool = False) -> None:
    """Refuse a checkpoint that cannot be loaded, before anything is read for it."""
    if why := why_not_loaded(model, trusted=trusted):
        if not trusted and not why_not_loaded(model, trusted=True):
            why += "; the checkpoint names code of its own: read it, then run it with "
            why += "--trust-remote-code"
        raise UnsupportedModelError(f"{model.name} cannot be calibrated: {why}.")
    absent = missing_code(model.checkpoint.path) if trusted else ()
    if absent:
        raise CheckpointError(
            f"{model.name} cannot be calibrated with its own code: {absent[0]} is missing from "
            f"{model.checkpoint.path}; fetch it."
        )


def dequantising_config(model: MoEModel) -> Any:
    """The configuration that makes transformers dequantise on loading; None if not quantised."""
    check_quantisation(model)
    return _METHODS[model.quantisation]() if model.quantisation else None
