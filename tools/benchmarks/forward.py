"""A forward by layers, which costs of runs by layers are told in."""

import torch

from analysis.calibration.feed import run_trunk
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, Skeleton
from analysis.corpora.sequences import TokenSequences
from analysis.model.moe_model import MoEModel


def forward(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> None:
    """One forward of all tokens through all layers, one layer in memory at a time."""
    skeleton = Skeleton(model, settings)
    relay = Relay(skeleton.model, skeleton.layers, model.family.label, run_trunk)
    batches = list(sequences.batches(settings.batch_size))
    skeleton.load(EMBEDDINGS)
    with torch.no_grad():
        hidden = [relay.embed(batch) for batch in batches]
        skeleton.drop(EMBEDDINGS)
        for layer in range(len(skeleton.layers)):
            skeleton.load(layer)
            hidden = [
                relay.layer(layer, batch, before)
                for batch, before in zip(batches, hidden, strict=True)
            ]
            skeleton.drop(layer)
