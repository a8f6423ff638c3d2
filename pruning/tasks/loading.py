"""A model with its weights: where they lie, and for how long."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from analysis.model import MoEModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from analysis.calibration.loading import CalibrationSettings, Placement


class Spread(Protocol):
    """What requests and recipes say of where weights lie."""

    @property
    def device_map(self) -> str | None:
        """As accelerate takes it; None puts all on one device."""

    @property
    def max_memory(self) -> tuple[str, ...]:
        """At most so much on each device: DEVICE=SIZE."""

    @property
    def offload_folder(self) -> Path | None:
        """Where weights go that fit nowhere else."""


def placement_of(asked: Spread) -> "Placement":
    """Where weights lie while the model runs."""
    from analysis.calibration.loading import Placement

    limits = (limit.partition("=") for limit in asked.max_memory)
    return Placement(
        device_map=asked.device_map or "",
        max_memory=tuple((device, size) for device, _, size in limits),
        offload_folder=asked.offload_folder,
    )


def quiet_transformers() -> None:
    """No bars and no warnings of transformers: progress is shown our way."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def loaded_model(model: MoEModel, settings: "CalibrationSettings") -> "Iterator[PreTrainedModel]":
    """The model with its weights, for as long as the context lasts."""
    from analysis.calibration.loading import load_model, offload_space

    quiet_transformers()
    with offload_space(settings.placement) as offload:
        yield load_model(model, settings, offload)
