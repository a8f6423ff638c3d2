"""The part that all requests about a model share, and the request for its weights."""

from collections.abc import Sequence
from typing import ClassVar

from pruning.requests import options
from pruning.requests.base import Request, command_line, option_words, repeated


class ModelRequest(Request):
    """A request about a model."""

    asked_by: ClassVar[str] = ""  # the equivalent command
    writes: ClassVar[str] = ""  # default name of the file that it writes; empty for none

    model: options.Model
    revision: options.Revision | None = None

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the files that hold the request's plans."""
        named = repeated("--plan", plans[: len(getattr(self, "plans", ()))])
        written = ("-o", out or self.writes) if self.writes else ()
        return command_line(self.asked_by, self.model, *named, *option_words(self), *written)


class WeightsRequest(ModelRequest):
    """Weight statistics of a model."""

    asked_by = "weights"
    stats_dir: options.StatsDir | None = None
