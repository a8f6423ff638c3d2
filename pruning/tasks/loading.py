"""Loads models: how they run, and where their weights lie."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.corpora.early import check_vocabulary
from analysis.corpora.tokens import Tokenizer
from analysis.machine.launcher import launched_world
from analysis.model.moe_model import MoEModel
from analysis.stats.places import record_folders
from analysis.stats.store import StatsStore, stats_store
from pruning.measures.store import RecordStore
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.plan_file import plan_from_dict
from pruning.records.repair_files import checked_record, with_repair_files
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.spec.base import Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from analysis.calibration.loading import CalibrationSettings, Placement

_RUNNING = {"seed", "dtype", "device", "batch_size", "trust_remote_code", "attention"}


def placement_of(request: Request) -> "Placement":
    """Where weights lie while the model runs, by a request or a section of a recipe."""
    from analysis.calibration.loading import Placement

    options = request.model_dump(
        include={field.name for field in fields(Placement)}, exclude_none=True
    )
    limits = (limit.partition("=") for limit in options.pop("max_memory", ()))
    return Placement(max_memory=tuple((device, size) for device, _, size in limits), **options)


def search_placement(recipe: Recipe, machine: Machine) -> "Placement":
    """Where weights lie while the candidates of a search run."""
    return replace(
        placement_of(recipe.calibrate),
        stream_layers=machine.stream_layers,
        experts_at_once=machine.experts_at_once or 0,
    )


def run_settings(request: Request, seq_len: int, **more: Any) -> "CalibrationSettings":
    """How the model runs: by a request, overridden by `more`; `seq_len` is the longest sequence."""
    from analysis.calibration.loading import CalibrationSettings

    options = request.model_dump(include=_RUNNING, exclude_none=True)
    return CalibrationSettings(seq_len, **{"placement": placement_of(request)} | options | more)


@contextmanager
def together() -> Iterator[None]:
    """Run a block in every process of a launcher; if it fails in one, all of them stop."""
    if launched_world() == 1:  # without torch
        yield
        return
    from analysis.calibration.distributed import join

    with join().together():
        yield


def check_records_folder(stats_dir: Path | None, records: RecordStore[Any], identity: str) -> None:
    """Refuse a folder that was asked for, holds no such records of a model and can take none."""
    if stats_dir is not None:
        store = stats_store(stats_dir)
        own = record_folders((store.target,), identity)
        if not any((folder / records.kind.folder).is_dir() for folder in own):
            store.check_target()


def quiet_transformers() -> None:
    """Switch off progress bars and warnings of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def tokenizer_loader(model: MoEModel, *, trusted: bool) -> Callable[[], Tokenizer]:
    """What loads the checkpoint's tokenizer when it is first called; token ids need none."""

    @cache
    def load() -> Tokenizer:
        check_vocabulary(model, trusted=trusted)
        from analysis.calibration.loading import load_tokenizer

        quiet_transformers()
        return load_tokenizer(model, trust_remote_code=trusted)

    return load


@contextmanager
def loaded_model(model: MoEModel, settings: "CalibrationSettings") -> "Iterator[PreTrainedModel]":
    """The model with its weights, inside the context."""
    from analysis.calibration.loading import load_model, offload_space

    quiet_transformers()
    with offload_space(settings.placement) as offload:
        yield load_model(model, settings, offload)


def open_plan(raw: dict[str, Any], model: MoEModel, store: StatsStore) -> PruningPlan:
    """The complete plan of a plan.json, with the files of its repair, which are checked."""
    plan = with_repair_files(fit_plan(plan_from_dict(raw), model), store.directories)
    checked_record(plan, model)
    return plan
