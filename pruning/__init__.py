"""Decides and rewrites: plans, masks, exports. `Model` is the way to all of it from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.nonuniform.loading import load_pruned as load_pruned
    from pruning.model import Model as Model

__all__ = ["Model", "load_pruned"]


def __getattr__(name: str) -> Any:
    # Not at once: the dashboard imports this package and must start without torch.
    if name == "Model":
        from pruning.model import Model

        return Model
    if name == "load_pruned":
        from analysis.nonuniform.loading import load_pruned

        return load_pruned
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
