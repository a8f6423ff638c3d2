"""The calibration run: load, feed every sequence once, save the sums; resumable."""

import json
import logging
import os
import platform
import resource
import sys
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors
import safetensors.torch
import torch
import transformers
from filelock import FileLock, Timeout
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from analysis.calibration.experts import RoutedSums, batch_mask, collecting
from analysis.corpora import TokenBatch, Tokenizer, TokenSequences
from analysis.errors import CheckpointError, CorpusError, StatsError
from analysis.model import MoEModel
from analysis.progress import Progress
from analysis.stats import (
    MOMENT_COLUMNS,
    SCHEMA_VERSION,
    CorpusRef,
    Grid,
    RunManifest,
    model_ref,
)
from analysis.store import (
    PARTIAL,
    Run,
    StatsStore,
    digest_of,
    now,
    read_run,
    run_name,
    save_expert_stats,
    sync_directory,
)

logger = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# transformers makes an empty tokenizer where a checkpoint has none.
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")
_STATE = "state.safetensors"
_SAVE_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """How a calibration is run.

    Args:
        seq_len: tokens in a sequence.
        seed: of the order of documents.
        dtype: element type of the computation; "auto" is the checkpoint's.
        device: "cpu", "cuda", ...; "auto" is an accelerator if there is one.
        batch_size: sequences in one forward; does not change the numbers beyond rounding.
        trust_remote_code: run code that comes with the checkpoint; off unless asked for.
    """

    seq_len: int
    seed: int = 42
    dtype: str = "auto"
    device: str = "auto"
    batch_size: int = 8
    trust_remote_code: bool = False


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" prefers an accelerator.

    Raises:
        CheckpointError: the device is not there.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        # Apple's accelerator has no float64, which the sums need.
        return accelerator if accelerator and accelerator.type == "cuda" else torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"The device {name!r} cannot be used here; try cpu.") from error


def resolve_dtype(name: str, model: MoEModel) -> str:
    """Name of the element type of the computation.

    Raises:
        CheckpointError: unknown, or "auto" on a checkpoint of a type that torch cannot compute in.
    """
    stored = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
    resolved = stored.get(model.dtype, model.dtype) if name == "auto" else name
    if resolved not in DTYPES:
        raise CheckpointError(
            f"Cannot compute in {resolved!r}; choose one of auto, {', '.join(DTYPES)}."
        )
    return resolved


def load_tokenizer(model: MoEModel, *, trust_remote_code: bool = False) -> Tokenizer:
    """The checkpoint's own tokenizer.

    Raises:
        CheckpointError: there is none that transformers can read.
    """
    problem = f"{model.name} has no tokenizer that can be read; use a corpus of input_ids."
    if not any(any(model.checkpoint.path.glob(pattern)) for pattern in _VOCABULARIES):
        raise CheckpointError(problem)
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            model.checkpoint.path, trust_remote_code=trust_remote_code, verbose=False
        )
    except (OSError, ValueError, StrictDataclassError) as error:
        raise CheckpointError(problem) from error
    return tokenizer


def load_model(model: MoEModel, settings: CalibrationSettings) -> PreTrainedModel:
    """The model in evaluation mode, ready to run.

    Raises:
        CheckpointError: tensors are missing or do not fit.
    """
    device = resolve_device(settings.device)
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model.checkpoint.path,
            dtype=DTYPES[resolve_dtype(settings.dtype, model)],
            device_map=None if device.type == "cpu" else {"": device},
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (
        OSError,
        RuntimeError,
        StrictDataclassError,
        ValueError,
        safetensors.SafetensorError,
    ) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"transformers cannot load {model.name}: {reason}") from error
    if info["missing_keys"]:
        raise CheckpointError(f"{model.name} lacks the tensor {sorted(info['missing_keys'])[0]}.")
    loaded.requires_grad_(False)
    ready: PreTrainedModel = loaded.eval()
    return ready


def corpus_ref(sequences: TokenSequences, batch_size: int) -> CorpusRef:
    """What the manifest says of the corpus."""
    return CorpusRef(
        name=sequences.corpus,
        digest=sequences.digest,
        num_documents=sequences.num_documents,
        num_sequences=len(sequences.rows),
        num_tokens=sequences.num_tokens,
        num_padded=sequences.num_padded(batch_size),
        num_dropped=sequences.num_dropped,
    )


def plan_run(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> RunManifest:
    """The manifest that the run will have, without its measurements; nothing is loaded.

    Raises:
        CorpusError: a token that the model does not have.
    """
    largest = max((int(row.max()) for row in sequences.rows if len(row)), default=0)
    vocabulary = model.checkpoint.config.get("vocab_size")
    if vocabulary is not None and largest >= vocabulary:
        raise CorpusError(
            f"The corpus {sequences.corpus} has the token id {largest}, but {model.name} has "
            f"{vocabulary} tokens; was it tokenised for another model?"
        )
    numbers = {
        "seq_len": settings.seq_len,
        "seed": settings.seed,
        "dtype": resolve_dtype(settings.dtype, model),
    }
    corpus = corpus_ref(sequences, settings.batch_size)
    digest = digest_of(
        numbers
        | {
            "schema_version": SCHEMA_VERSION,
            "model": model.identity,
            "corpus": corpus.digest,
            "tokens": corpus.num_tokens,
        }
    )
    words = (Path(model.name).name, Path(corpus.name).stem)
    return RunManifest(
        kind="routed",
        run_id=run_name(*words, digest=digest),
        digest=digest,
        model=model_ref(model),
        corpora=(corpus,),
        settings=numbers,
        made={},
    )


@dataclass(slots=True)
class _State:
    """Where a run stands: sequences done and the time they took."""

    done: int = 0
    tokens: int = 0
    seconds: float = 0.0


class _PartialRun:
    """The `.partial` directory of a run: its lock and its resumable state."""

    def __init__(self, parent: Path, manifest: RunManifest) -> None:
        self._digest = manifest.digest
        self._path = parent / (manifest.run_id + PARTIAL)
        self._path.mkdir(parents=True, exist_ok=True)
        self.lock_path = parent / f".{manifest.run_id}{PARTIAL}.lock"
        self.lock = FileLock(self.lock_path, timeout=0)

    def save(self, sums: RoutedSums, state: _State) -> None:
        metadata = {"digest": self._digest, "state": json.dumps(asdict(state))}
        draft = self._path / (_STATE + PARTIAL)
        safetensors.torch.save_file(sums.tensors(), draft, metadata=metadata)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(self._path / _STATE)
        sync_directory(self._path)

    def restore(self, sums: RoutedSums) -> _State:
        """The saved state; a fresh one when there is none of this very run."""
        path = self._path / _STATE
        if not path.is_file():
            return _State()
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("digest") != self._digest:
                    return _State()
                sums.load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except safetensors.SafetensorError:
            logger.warning("The saved state %s cannot be read; starting anew.", path)
            return _State()
        return _State(**json.loads(metadata["state"]))

    def forget(self) -> None:
        (self._path / _STATE).unlink(missing_ok=True)


def _feed(model: PreTrainedModel, batch: TokenBatch) -> None:
    device = model.device
    ids = torch.from_numpy(batch.input_ids).to(device)
    mask = None if batch.mask.all() else torch.from_numpy(batch.mask).to(device)
    batch_mask(mask)
    # The head is not needed: the statistics are complete after the last layer.
    model.base_model(
        input_ids=ids,
        attention_mask=None if mask is None else mask.to(torch.int64),
        use_cache=False,
    )


def _remaining(sequences: TokenSequences, done: int) -> TokenSequences:
    return TokenSequences(sequences.corpus, sequences.rows[done:], 0, 0)


def _advance(model: PreTrainedModel, batch: TokenBatch, state: _State) -> None:
    started = time.monotonic()
    with torch.no_grad():
        _feed(model, batch)
    state.done += len(batch.mask)
    state.tokens += int(batch.mask.sum())
    state.seconds += time.monotonic() - started


@dataclass(frozen=True, slots=True)
class _Work:
    """A run under way."""

    manifest: RunManifest
    partial: _PartialRun
    sums: RoutedSums
    state: _State


def _accumulate(
    model: PreTrainedModel, sequences: TokenSequences, work: _Work, batch_size: int
) -> Generator[Progress, None, None]:
    state, total, saved = work.state, sequences.num_tokens, time.monotonic()
    if state.done:
        note = f"resumed after {state.tokens} of {total} tokens"
        yield Progress("calibrating", state.tokens, total, "tokens", note)
    try:
        for batch in _remaining(sequences, state.done).batches(batch_size):
            _advance(model, batch, state)
            if time.monotonic() - saved > _SAVE_EVERY_SECONDS:
                work.partial.save(work.sums, state)
                saved = time.monotonic()
            yield Progress("calibrating", state.tokens, total, "tokens")
    except GeneratorExit:
        # Stopped between two batches, where the sums are whole. In the middle of one they are
        # not, so any other exception leaves the last saved state as it is.
        work.partial.save(work.sums, state)
        raise


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process has held: on the accelerator if that is where it ran."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _made(model: PreTrainedModel, state: _State, settings: CalibrationSettings) -> dict[str, Any]:
    return {
        "created_at": now(),
        "batch_size": settings.batch_size,
        "device": str(model.device),
        "system": f"{platform.system()} {platform.machine()}",
        "seconds": round(state.seconds, 2),
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
        "peak_memory_bytes": peak_memory_bytes(model.device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }


def _finish(store: StatsStore, manifest: RunManifest, sums: RoutedSums) -> Run:
    tensors = sums.tensors()
    layers = [layer.index for layer in manifest.model.layers]
    moments = np.concatenate([tensors[f"moments.{layer}"].numpy() for layer in layers])
    vectors = np.concatenate([tensors[f"vectors.{layer}"].numpy() for layer in layers])
    table = pd.concat(
        [
            Grid(manifest.model.layers).index(),
            pd.DataFrame(moments, columns=list(MOMENT_COLUMNS)),
        ],
        axis=1,
    )
    return save_expert_stats(store.target, manifest, table, vectors)


def finished_run(store: StatsStore, manifest: RunManifest) -> Run | None:
    """The run of this digest, if it is in the cache."""
    for run in store.runs():
        if run.manifest.digest == manifest.digest:
            return run
    return None


def calibrate(
    model: MoEModel,
    sequences: TokenSequences,
    settings: CalibrationSettings,
    store: StatsStore,
    *,
    resume: bool = True,
) -> Generator[Progress, None, Run]:
    """Run the model once over `sequences` and store the routed statistics.

    A run that is in the cache is returned at once. An interrupted one goes on where it was
    saved: at the latest 30 seconds before it stopped, with the same numbers as in one go when the
    batch size is the same. With `resume` off it starts anew.

    Raises:
        CheckpointError: the model cannot be loaded.
        StatsError: the same run is being made by another process, or gave a value that is no
            number.
    """
    manifest = plan_run(model, sequences, settings)
    if run := finished_run(store, manifest):
        total = sequences.num_tokens
        yield Progress("cached", total, total, "tokens", f"{run.manifest.run_id} is in the cache")
        return run
    if (unreadable := store.target / manifest.run_id).exists():
        read_run(unreadable)  # says what is wrong, before the work and not after it
    partial = _PartialRun(store.target, manifest)
    try:
        with partial.lock:
            if not resume:
                partial.forget()
            sums = RoutedSums(model.layers, model.hidden_size)
            work = _Work(manifest, partial, sums, partial.restore(sums))
            manifest = yield from _calibrate(model, sequences, settings, work)
            run = _finish(store, manifest, sums)
        partial.lock_path.unlink(missing_ok=True)
    except Timeout as error:
        raise StatsError(
            f"{manifest.run_id} is being calibrated by another process; wait for it to finish."
        ) from error
    return run


def _calibrate(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: _Work
) -> Generator[Progress, None, RunManifest]:
    yield Progress("loading the model", 0, sequences.num_tokens, "tokens")
    loaded = load_model(model, settings)
    with collecting(loaded, model, work.sums):
        yield from _accumulate(loaded, sequences, work, settings.batch_size)
    if not all(tensor.isfinite().all() for tensor in work.sums.tensors().values()):
        work.partial.forget()
        raise StatsError(
            f"The model gave values that are no finite numbers in "
            f"{work.manifest.settings['dtype']}; calibrate with --dtype bfloat16 or float32."
        )
    return replace(work.manifest, made=_made(loaded, work.state, settings))
