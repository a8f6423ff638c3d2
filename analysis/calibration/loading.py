"""From a described checkpoint to a model and a tokenizer that run."""

from collections.abc import Callable, Iterator, Mapping
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

from analysis.aligned import align_weights
from analysis.calibration.distributed import join
from analysis.calibration.expert_parallel import loading_options
from analysis.corpora import Tokenizer
from analysis.errors import CheckpointError, StatsError, UnsupportedModelError
from analysis.families.native import register_native
from analysis.launcher import launched_world, local_rank
from analysis.model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from analysis.stats.groups import Group, misfit

# What fits a quantised checkpoint are the statistics of the weights that it stands for, the same
# with and without an accelerator. Kernels that compute in fewer bits round activations too.
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
# What transformers may raise of a checkpoint: values of its configuration that no class expects
# end in whatever the line that meets them raises.
LOADING_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError),
    *(OSError, RuntimeError, TypeError, ValueError, StrictDataclassError),
    safetensors.SafetensorError,
)
_SAYING = (ImportError, OSError, RuntimeError, ValueError, StrictDataclassError)
# transformers makes an empty tokenizer where a checkpoint has none.
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights and hidden states lie while the model runs; changes no number."""

    # "auto", "balanced", ... to spread the weights over devices, memory and disk as accelerate
    # does; empty: all on one device.
    device_map: str = ""
    # At most so much on each device, as ("0", "20GiB") or ("cpu", "8GiB").
    max_memory: tuple[tuple[str, str], ...] = ()
    offload_folder: Path | None = None  # where weights go that fit nowhere else
    stream_layers: bool = False  # load one layer at a time and run all tokens through it
    # Where hidden states go meanwhile; None: in memory while they are small.
    hidden_states_dir: Path | None = None
    expert_parallel: bool = False  # each process holds a part of the experts
    # Where a gradient is followed, keep each layer's input only and compute the layer again.
    checkpoint_activations: bool = False


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """How a calibration is run."""

    seq_len: int  # tokens in a sequence
    seed: int = 42  # of the order of documents
    dtype: str = "auto"  # dtype of the computation; "auto" is the checkpoint's
    device: str = "auto"  # "cpu", "cuda", ...; "auto" is an accelerator if there is one
    batch_size: int = 8  # sequences in one forward; does not change the numbers beyond rounding
    trust_remote_code: bool = False  # run code that comes with the checkpoint; off unless asked for
    groups: tuple[Group, ...] = ("routed",)  # statistics to collect
    # "eager", "sdpa", "flash_attention_2"; "auto" leaves it to transformers.
    attention: str = "auto"
    placement: Placement = Placement()  # where weights lie

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
    """What transformers' constructors take for the attention; nothing where it may choose."""
    if settings.attention == "auto":
        return {}
    return {"attn_implementation": settings.attention}


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" prefers an accelerator.

    Of several processes on one machine each gets a device of its own, unless the name has a number.
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
        raise CheckpointError(f"The device {name!r} cannot be used here; try cpu.") from error


def resolve_dtype(name: str, model: MoEModel) -> str:
    """Name of the dtype of the computation."""
    stored = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
    own = DEQUANTISED_TYPE if model.quantisation else stored.get(model.dtype, model.dtype)
    resolved = own if name == "auto" else name
    if resolved not in DTYPES:
        raise CheckpointError(
            f"Cannot compute in {resolved!r}; choose one of auto, {', '.join(DTYPES)}."
        )
    return resolved


def load_tokenizer(model: MoEModel, *, trust_remote_code: bool = False) -> Tokenizer:
    """The checkpoint's own tokenizer."""
    problem = f"{model.name} has no tokenizer that can be read; use a corpus of input_ids."
    if not any(any(model.checkpoint.path.glob(pattern)) for pattern in _VOCABULARIES):
        raise CheckpointError(problem)
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            model.checkpoint.path, trust_remote_code=trust_remote_code, verbose=False
        )
    except Exception as error:  # tokenizers raises bare ones, transformers any of its many files
        raise CheckpointError(problem) from error
    return tokenizer


@contextmanager
def offload_space(placement: Placement) -> Iterator[Path | None]:
    """A folder of its own for weights that fit nowhere else; gone afterwards."""
    if placement.offload_folder is None:
        yield None
        return
    folder = placement.offload_folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="moeprune-offload-", dir=folder) as own:
        yield Path(own)


def load_model(
    model: MoEModel, settings: CalibrationSettings, offload: Path | None = None
) -> PreTrainedModel:
    """The model in evaluation mode, ready to run; `offload` takes weights that fit nowhere else."""
    place, device = settings.placement, resolve_device(settings.device)
    placed: dict[str, Any] = {"device_map": None if device.type == "cpu" else {"": device}}
    if place.expert_parallel:
        placed = loading_options(model, join(), trust=settings.trust_remote_code)
    elif place.device_map:
        # accelerate counts devices by number and knows "cpu" and "disk" by name.
        limits = {int(key) if key.isdigit() else key: size for key, size in place.max_memory}
        placed = {
            "device_map": place.device_map,
            "max_memory": limits or None,
            "offload_folder": offload,
        }
    try:
        loaded, info = auto_class_of(model).from_pretrained(
            model.checkpoint.path,
            dtype=DTYPES[resolve_dtype(settings.dtype, model)],
            quantization_config=dequantising_config(model),
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            **attention_option(settings),
            **placed,
        )
    except LOADING_ERRORS as error:
        raise load_error(model, error) from error
    if info["missing_keys"]:
        raise CheckpointError(f"{model.name} lacks the tensor {sorted(info['missing_keys'])[0]}.")
    align_weights(loaded)
    loaded.requires_grad_(False)
    ready: PreTrainedModel = loaded.eval()
    return ready


def load_error(model: MoEModel, error: Exception) -> CheckpointError:
    """What transformers says, in one line."""
    reason = str(error).strip().partition("\n")[0]
    if not isinstance(error, _SAYING):  # such as the key of a KeyError, which alone says little
        reason = f"{type(error).__name__} {reason}"
    return CheckpointError(f"transformers cannot load {model.name}: {reason}")


def why_not_loaded(model: MoEModel, *, trusted: bool = False) -> str:
    """Why a checkpoint is not loaded here, in a sentence without an end; empty if it is.

    `trusted`: code that comes with it may be run, and may bring the class.
    """
    register_native(model.family.model_type)
    own_code = trusted and model.checkpoint.config.get("auto_map")
    if not own_code and model.family.model_type not in CONFIG_MAPPING:
        return f"transformers has no class for {model.family.model_type!r}"
    return model.unloadable


def dequantising_config(model: MoEModel) -> Any:
    """What tells transformers to dequantise while loading; None where nothing is quantised."""
    method = model.quantisation
    if not method:
        return None
    if method not in _METHODS:
        raise UnsupportedModelError(
            f"{model.name} is quantised with {method}, which cannot be calibrated; of quantised "
            f"checkpoints {' and '.join(_METHODS)} can. Use the checkpoint in full precision."
        )
    return _METHODS[method]()
