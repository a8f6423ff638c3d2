"""The request for the best ways to a size."""

from typing import Annotated

from pydantic import Field

from pruning.requests.model import ModelRequest
from pruning.spec import options, plan_options
from pruning.spec.base import Option


class FitRequest(ModelRequest):
    """Which experts and how many bits reach a size, by stored evaluations."""

    asked_by = "fit"
    target_size: plan_options.TargetSize
    ways: Annotated[int, Field(strict=True, ge=1, le=100), Option("How many ways to show.")] = 5
    stats_dir: options.StatsDir | None = None
