"""Describes a checkpoint as a MoEModel, in whatever family it is."""

from dataclasses import replace

from analysis.checkpoint.index import Checkpoint
from analysis.errors import UnsupportedModelError
from analysis.families.listing import family_of
from analysis.model.checking import check_layers
from analysis.model.moe_model import MoEModel
from analysis.model.other_files import files_beside


def describe_model(checkpoint: Checkpoint, *, name: str = "") -> MoEModel:
    """Describe a checkpoint, and check that every expert is present."""
    shapes = {entry.name: entry.shape for entry in checkpoint.tensors.values()}
    family = family_of(checkpoint.config, shapes)
    layers = family.layers(checkpoint.config)
    if not layers:
        raise UnsupportedModelError(
            f"Every layer of this {family.label} model is dense according to its config.json, so "
            "there is nothing to prune."
        )
    depth = family.depth(family.text_config(checkpoint.config))
    other_files = files_beside(checkpoint, family, depth)
    heads = tuple(shard for file, shard in other_files if file.is_read)
    checkpoint = replace(checkpoint, shards=(*checkpoint.shards, *heads))
    model = MoEModel(name or checkpoint.path.name, checkpoint, family, layers)
    check_layers(model)
    return model
