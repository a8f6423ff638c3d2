"""Run a model on the CPU for a check, as it is or as a plan has it; here, whole in memory."""

import gc
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from analysis.calibration.loading import (
    DTYPES,
    LOADING_ERRORS,
    cast_as_plain,
    dequantising_config,
    experts_option,
)
from analysis.checkpoint.aligned import align_weights
from analysis.errors import first_line
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from analysis.progress import Costs
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan
from pruning.surgery.verify_costs import run_costs

Keys = Mapping[str, Collection[Any]]  # by kind, those that loading could not place


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of a run, by name."""

    stored: str = "auto"  # that weights are rounded to first; "auto": the checkpoint's
    computed: str = ""  # empty: the same


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


# A way to run a model on token ids, as a plan has it, whose removed parts are masked; None: as it
# is. It yields the costs of what was done since it last did, in all those of `RunCosts`.
RunModel = Callable[[MoEModel, Tensor, Precision, PruningPlan | None], Generator[Costs, None, Run]]


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


def run_whole(
    model: MoEModel, ids: Tensor, precision: Precision, plan: PruningPlan | None
) -> Generator[Costs, None, Run]:
    """Run a model that is in memory as a whole."""
    costs = run_costs(model, ids.numel(), precision.computed, by_layers=False)
    yield {}
    gc.collect()  # models hold reference cycles; else two would be in memory
    try:
        loaded, keys = _load(model, DTYPES.get(precision.stored, precision.stored))
    except LOADING_ERRORS as error:
        raise DoesNotLoad(first_line(error)) from error
    if precision.computed:
        loaded = loaded.to(DTYPES[precision.computed])
    yield costs.loading
    try:
        with masked(loaded, model.family, plan) if plan else nullcontext():
            logits = logits_of(loaded, ids)
    except RuntimeError as error:
        raise DoesNotRun(first_line(error), keys) from error
    yield costs.multiplying
    return Run(logits, keys)
