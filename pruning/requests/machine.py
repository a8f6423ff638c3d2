"""Where a recipe runs: options of the commands that take one."""

from typing import Annotated

from pruning.option import Option
from pruning.spec import options
from pruning.spec.base import Request


class Machine(Request):
    """Where a recipe runs; not part of it, as it does not change the result."""

    device: Annotated[
        options.Device | None, Option("Device: auto, cpu, cuda, cuda:1 ...; default: the recipe's.")
    ] = None
    batch_size: Annotated[
        options.BatchSize | None, Option("Sequences in one forward; default: the recipe's.")
    ] = None
    stream_layers: options.StreamLayers = False
    experts_at_once: options.ExpertsAtOnce | None = None
    trust_remote_code: options.Trust = False
    stats_dir: options.StatsDir | None = None
