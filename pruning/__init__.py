"""Decides and rewrites: plans, masks, exports. `Model` is the way to all of it from Python."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pruning.model import Model as Model

__all__ = ["Model", "load_pruned"]


def __getattr__(name: str) -> Any:
    # Not at once: the dashboard imports this package and must start without torch.
    if name == "Model":
        from pruning.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_pruned(path: str | Path, **options: Any) -> Any:
    """Load a pruned checkpoint, whether or not its layers have the same number of experts.

    `path` is a folder or a hub id; options are those of `from_pretrained`. A transformers model.
    """
    from analysis.nonuniform.loading import load_pruned as load

    return load(path, **options)
