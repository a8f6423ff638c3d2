"""Runs prediction heads (MTP) beside the trunk, and adds the statistics of their experts.

transformers has no class for heads. A head's decoder layer is built like one of the trunk, so it
runs in that layer's place, in a model of its own that holds nothing else. Position t of the head
gets the trunk's hidden state at t and the embedding of token t + 1, as when engines draft with it.
Shape suffixes: B sequences, T length, D hidden size.
"""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from analysis.calibration.experts import collecting
from analysis.calibration.feed import feed, one_dtype, predicted, run_trunk
from analysis.calibration.loading import CalibrationSettings, resolve_dtype
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import Skeleton, StoredTensor
from analysis.calibration.sums import GroupSums
from analysis.checkpoint.index import TensorEntry
from analysis.corpora.sequences import TokenBatch
from analysis.errors import UnsupportedModelError
from analysis.model.forwards import listening, wrap_forward
from analysis.model.head_parts import HeadLayer, HeadParts, runnable_heads
from analysis.model.moe_model import MoEModel

Feed = Callable[[PreTrainedModel, TokenBatch], None]  # runs the trunk on a batch


class _Layer:
    """A decoder layer of a head, loaded."""

    def __init__(
        self, model: MoEModel, head: str, layer: HeadLayer, settings: CalibrationSettings
    ) -> None:
        first = model.checkpoint.shards[0]
        by_file: dict[str, list[TensorEntry]] = {}
        for entry in layer.tensors:
            by_file.setdefault(entry.shard, []).append(entry)
        shards = tuple(
            replace(first, name=file, tensors=tuple(entries)) for file, entries in by_file.items()
        )
        experts = [
            candidate
            for candidate in model.layers
            if layer.experts and candidate.index == layer.like
        ]
        self._described = replace(
            model, checkpoint=replace(model.checkpoint, shards=shards), layers=tuple(experts)
        )
        self._layer = layer
        self.skeleton = Skeleton(self._described, settings)
        self.skeleton.load(layer.like)
        self._relay = Relay(
            self.skeleton.model,
            self.skeleton.layers,
            f"The prediction head {head}",
            feed if experts else run_trunk,
            refused="cannot be run",
            instead="Leave out the group heads",
        )

    def run(self, batch: TokenBatch, hidden_BTD: Tensor, sums: GroupSums) -> Tensor:
        """The layer's output, (B, T, D); adds to the sums if it has experts."""
        with ExitStack() as stack:
            if self._layer.experts:
                numbers = {self._layer.like: self._layer.number}
                context = collecting(self.skeleton.model, self._described, sums, numbers)
                stack.enter_context(context)
            return self._relay.layer(self._layer.like, batch, hidden_BTD)


@dataclass(frozen=True, slots=True)
class _Head:
    embedding_norm: nn.Module
    hidden_norm: nn.Module
    projection_DC: Tensor  # C = 2 * D
    layers: tuple[_Layer, ...]

    def run(
        self, batch: TokenBatch, embedding_BTD: Tensor, hidden_BTD: Tensor, sums: GroupSums
    ) -> Tensor:
        """Hidden states for the next head, (B, T, D)."""
        device = self.projection_DC.device
        parts = (
            self.embedding_norm(embedding_BTD.to(device)),
            self.hidden_norm(hidden_BTD.to(device)),
        )
        entered_BTD = functional.linear(torch.cat(parts, dim=-1), self.projection_DC)
        for layer in self.layers:
            entered_BTD = layer.run(batch, entered_BTD, sums)
        return entered_BTD


class Heads:
    """The prediction heads of a model, loaded; `feed` adds to the sums."""

    def __init__(self, model: MoEModel, settings: CalibrationSettings, sums: GroupSums) -> None:
        self._sums = sums.of_routed()
        # Of the whole model: a head's layer may have no experts to tell it from.
        settings = replace(settings, dtype=resolve_dtype(settings.dtype, model))
        self._heads = [_load(model, parts, settings) for parts in runnable_heads(model)]

    @torch.no_grad()
    def feed(self, batch: TokenBatch, hidden_BTD: Tensor, embed: nn.Module) -> list[Tensor]:
        """Run a batch through the heads; `hidden_BTD` is the trunk's output, after its last norm.

        `embed` are the model's embeddings. Returns what the layers of each head give, one token
        shorter than what it gets: the last token has no next one.
        """
        device, outputs = next(embed.parameters()).device, []
        for head in self._heads:
            # Position t has token t + 1, at the place of token t.
            batch = replace(
                batch,
                input_ids=batch.input_ids[:, 1:],
                mask=batch.mask[:, 1:],
                counted=predicted(batch),
                token_shard=batch.token_shard[:, 1:],
                positions=None if batch.positions is None else batch.positions[:, :-1],
            )
            if not batch.input_ids.size:
                break
            ids_BT = torch.from_numpy(batch.input_ids)
            # Offloaded weights are on no device; accelerate brings the ids to where they go.
            embedding_BTD = embed(ids_BT if device.type == "meta" else ids_BT.to(device))
            with one_dtype(head.layers[0].skeleton.model):
                hidden_BTD = head.run(batch, embedding_BTD, hidden_BTD[:, :-1], self._sums)
            outputs.append(hidden_BTD)
        return outputs

    def fed_after(self, run: Feed) -> Feed:
        """`run`, after which the heads get what the trunk gave."""

        def both(model: PreTrainedModel, batch: TokenBatch) -> None:
            outputs: list[Any] = []
            with ExitStack() as restore:
                wrap_forward(model.base_model, listening(outputs.append), restore)
                run(model, batch)
            hidden_BTD = outputs[0].last_hidden_state.detach()
            self.feed(batch, hidden_BTD, model.get_input_embeddings())

        return both


def _load(model: MoEModel, parts: HeadParts, settings: CalibrationSettings) -> _Head:
    layers = tuple(_Layer(model, parts.name, layer, settings) for layer in parts.layers)
    skeleton, width = layers[0].skeleton, parts.hidden_norm.numel
    # A norm of the hidden states in a decoder layer; the heads' norms are of its class.
    norms = (
        module
        for module in skeleton.layers[parts.layers[0].like].children()
        if "norm" in type(module).__name__.lower()
        and getattr(getattr(module, "weight", None), "shape", ()) == (width,)
    )
    if (norm := next(norms, None)) is None:
        raise UnsupportedModelError(
            f"The prediction head {parts.name} cannot be run: layers of {model.family.label} have "
            "no norm to build its own like. Leave out the group heads."
        )

    def read(entry: TensorEntry) -> Tensor:
        return StoredTensor(model.checkpoint.path, entry)[...].to(skeleton.device)

    def norm_with(entry: TensorEntry) -> Any:
        new_norm: Any = copy.deepcopy(norm)
        new_norm.weight = nn.Parameter(read(entry).to(new_norm.weight.dtype), requires_grad=False)
        return new_norm

    return _Head(
        norm_with(parts.embedding_norm),
        norm_with(parts.hidden_norm),
        read(parts.projection).to(skeleton.model.dtype),
        layers,
    )
