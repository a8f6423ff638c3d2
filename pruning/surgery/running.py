"""Run a model on the CPU for a check, as it is or as a plan has it; here, whole in memory."""

import gc
from collections.abc import Collection, Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from analysis.calibration.free import lacks_memory
from analysis.calibration.loading import (
    DTYPES,
    LOADING_ERRORS,
    cast_as_plain,
    dequantising_config,
    experts_option,
)
from analysis.checkpoint.aligned import align_weights
from analysis.errors import ExportError, first_line
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from analysis.progress import Costs
from pruning.engine.masking import masked
from pruning.surgery.verify_costs import ForwardPass, run_costs

_INSTEAD = "use --stream-layers, or --level bytes"
Keys = Mapping[str, Collection[Any]]  # by kind, those that loading could not place


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a model computed, and what loading it could not place."""

    logits: Tensor
    keys: Keys


class DoesNotLoad(Exception):
    """A model cannot be loaded; its text says why."""


class DoesNotRun(Exception):
    """A model was loaded and cannot be run."""

    def __init__(self, reason: str, keys: Keys) -> None:
        super().__init__(reason)
        self.keys = keys


Outcome = Run | DoesNotLoad | DoesNotRun


def refuse_lack_of_memory(error: Exception, instead: str) -> None:
    """Lack of memory says nothing of an export.

    Raises:
        ExportError: there was no memory left.
    """
    if lacks_memory(error):
        raise ExportError(f"The memory ran out while a model was run; {instead}.") from error


def _load(model: MoEModel, dtype: torch.dtype | str) -> tuple[Any, Any]:
    options: dict[str, Any] = dict(experts_option(dtype))
    # Alike on every machine: with a GPU, transformers would keep weights quantised.
    if dequantising := dequantising_config(model):
        options["quantization_config"] = dequantising
    loaded, info = auto_class_of(model).from_pretrained(
        model.checkpoint.path,
        dtype=dtype,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        **options,
    )
    if model.quantisation:
        cast_as_plain(loaded, loaded.config.dtype)
    align_weights(loaded)
    return loaded.eval(), info


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """(rows, length, vocabulary) logits of a loaded model."""
    with torch.no_grad():
        result: Tensor = model(ids, use_cache=False, output_router_logits=False).logits
    return result


def run_whole(one: ForwardPass, ids: Tensor) -> Generator[Costs, None, Outcome]:
    """Run a model on token ids, in memory as a whole.

    Yields the costs of what was done since it last did, in all those of `RunCosts`.
    """
    model, precision, plan = one.model, one.precision, one.plan
    costs = run_costs(model, ids.numel(), precision.computed)
    yield {}
    gc.collect()  # models hold reference cycles; else two would be in memory
    try:
        loaded, keys = _load(model, DTYPES.get(precision.stored, precision.stored))
    except LOADING_ERRORS as error:
        refuse_lack_of_memory(error, _INSTEAD)
        return DoesNotLoad(first_line(error))
    if precision.computed:
        loaded = loaded.to(DTYPES[precision.computed])
    yield costs.loading
    try:
        with masked(loaded, model.family, plan) if plan else nullcontext():
            logits = logits_of(loaded, ids)
    except RuntimeError as error:
        refuse_lack_of_memory(error, _INSTEAD)
        return DoesNotRun(first_line(error), keys)
    yield costs.multiplying
    return Run(logits, keys)
