"""Decides and rewrites: plans, masks, exports."""

from pathlib import Path
from typing import Any


def load_pruned(path: str | Path, **options: Any) -> Any:
    """Load a pruned checkpoint, whether or not its layers have the same number of experts.

    See `analysis.nonuniform.loading.load_pruned`, which this calls: path is a folder or a hub id,
    options are those of `from_pretrained`, the result is a transformers model.

    Raises:
        CheckpointError: not a checkpoint, or its configuration and tensors do not agree.
        UnsupportedModelError: dense, or an architecture that cannot be handled.
    """
    # Here and not above: the dashboard imports this package and must start without torch.
    from analysis.nonuniform.loading import load_pruned as load

    return load(path, **options)
