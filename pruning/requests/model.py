"""What is asked of a model: the part that all such requests share, and its weights."""

from pruning.requests import options
from pruning.requests.base import Request, command_line, option_words


class ModelRequest(Request):
    """What is asked of a model."""

    model: options.Model
    revision: options.Revision | None = None


class WeightsRequest(ModelRequest):
    """Weight statistics of a model."""

    stats_dir: options.StatsDir | None = None

    def command(self) -> str:
        """The equivalent command line."""
        return command_line("weights", self.model, *option_words(self))
