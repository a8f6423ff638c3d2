"""What is asked of a model: the part that all such requests share, and its weights."""

from collections.abc import Sequence
from typing import ClassVar

from pruning.requests import options
from pruning.requests.base import Request, command_line, option_words, repeated


class ModelRequest(Request):
    """What is asked of a model."""

    asked_by: ClassVar[str] = ""  # the command that asks the same
    writes: ClassVar[str] = ""  # the file that it writes, by the usual name; empty for none

    model: options.Model
    revision: options.Revision | None = None

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the files that hold the plans of a request."""
        named = repeated("--plan", plans[: len(getattr(self, "plans", ()))])
        written = ("-o", out or self.writes) if self.writes else ()
        return command_line(self.asked_by, self.model, *named, *option_words(self), *written)


class WeightsRequest(ModelRequest):
    """Weight statistics of a model."""

    asked_by = "weights"
    stats_dir: options.StatsDir | None = None
