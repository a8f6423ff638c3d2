"""Estimates of a calibration's memory, for each way of running the model, and of its time."""

from dataclasses import dataclass, replace

import torch

from analysis.calibration.blocks import (
    RunSizes,
    block_bytes,
    check_block,
    experts_that_fit,
    layer_sizes,
    layers_in_blocks,
    memory_of,
)
from analysis.calibration.feed import backward_options
from analysis.calibration.loading import (
    DTYPES,
    CalibrationSettings,
    check_loadable,
    resolve_device,
    resolve_dtype,
)
from analysis.calibration.streamed import PAUSED_TIMES, hidden_bytes, is_on_disk
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TokenSequences
from analysis.errors import CheckpointError
from analysis.model.layer_costs import active_by_layer
from analysis.model.moe_model import OUTPUT_HEAD, MoEModel
from analysis.model.parts import weights_by_part
from analysis.model.widths import computed_widths
from analysis.progress import Costs, cost

_GIB = 1 << 30
_ROUTE_BYTES = 60  # of a token and one of its experts: order, ids, gate weight
# Backward differentiates the inputs of every product, not the weights: as much again, and the head.
TIMES_WITH_BACKWARD = 2.5


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Estimated bytes on the device, in addition to the Python process.

    Hidden states count on a CPU only: a GPU leaves them to the memory of the CPU.
    """

    whole_model: int  # with all layers on one device
    weights: int  # the part of `whole_model` for the weights, which processes share
    streamed: int  # with one layer at a time
    free: int  # available to this process on the device
    batch_size: int  # sequences that run at once
    graph: int = 0  # the part of `whole_model` for the activations that backward needs
    in_blocks: int = 0  # with a block of experts at a time; 0 if a layer fits
    experts_at_once: int = 0  # in such a block
    inseparable: str = ""  # why layers run neither by themselves nor in shares; see `MoEModel`

    @property
    def advice(self) -> str:
        """What fits, as options of the command line."""
        if self.whole_model <= self.free:
            return "fits"
        if self.graph:
            return f"does not fit: {backward_options(self.batch_size)}; or --device-map auto"
        # Spread over a device and a disk, one layer is on the device at a time, whole.
        at_once = self.streamed if self.inseparable else self.in_blocks or self.streamed
        if at_once > self.free:
            fewer = "a smaller --batch-size, or " if self.batch_size > 1 else ""
            return f"does not fit, not even layer by layer: {fewer}more memory"
        if self.inseparable:
            return (
                "does not fit whole: --device-map auto --offload-folder DIR; neither by layers nor "
                f"in shares, as {self.inseparable}"
            )
        return (
            "does not fit whole: --stream-layers, --device-map auto --offload-folder DIR, or "
            "on several machines or GPUs several processes (torchrun), each with a share"
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated memory and work of a calibration."""

    memory_bytes: int  # for the chosen settings, in addition to the Python process
    needs: MemoryNeeds  # for each way of running the model, and what is free
    costs: Costs  # of reading the model and of the passes


def memory_needs(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> MemoryNeeds:
    """What the whole model and a streamed run need, and what is free."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    weights = item * sum(weights_by_part(model).values())
    constant = _running_bytes(model, sequences, settings)
    graph = _graph_bytes(model, settings, _tokens_at_once(sequences, settings))
    run, sizes = run_sizes(model, sequences, settings), layer_sizes(model, settings)
    at_once, device = experts_that_fit(model, settings, run), resolve_device(settings.device)
    states, paused = (run.states, run.paused) if device.type == "cpu" else (0, 0)
    return MemoryNeeds(
        whole_model=weights + constant + graph,
        weights=weights,
        streamed=sizes.whole + run.running + states,
        free=memory_of(device),
        batch_size=settings.batch_size,
        graph=graph,
        in_blocks=block_bytes(sizes, at_once, run) + paused if at_once else 0,
        experts_at_once=at_once,
        inseparable=model.inseparable,
    )


def _tokens_at_once(sequences: TokenSequences, settings: CalibrationSettings) -> int:
    return settings.batch_size * max(len(row) for row in sequences.rows)


def _running_bytes(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> int:
    """Sums, and activations without a graph."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    with torch.device("meta"):  # shapes are enough: sums of a large model take gigabytes
        sums = sums_of(model, settings.groups, len(sequences.rows)).nbytes
    # Per token a dozen vectors of the hidden size, and per expert of a token some 32 float64: the
    # terms of the sums.
    token = 12 * model.hidden_size * item + max(layer.top_k for layer in model.layers) * 8 * 32
    return sums + _tokens_at_once(sequences, settings) * token


def routed_bytes(model: MoEModel, tokens: int, item: int) -> int:
    """Bytes of what transformers' grouped products hold for the experts of so many tokens.

    At most what each expert is given, and four arrays of its width, or three of its output.
    Statistics are collected expert by expert instead.
    """
    width = max(max(widths) for widths in computed_widths(model).values())
    row = model.hidden_size + max(4 * width, 3 * model.expert_output_size)
    return item * tokens * max(layer.top_k for layer in model.layers) * row


def run_sizes(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> RunSizes:
    """What a streamed run takes in addition to the weights of a layer."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    running = _running_bytes(model, sequences, settings)
    if "heads" in settings.groups:  # which run with the embeddings and the last norm in memory
        ends = weights_by_part(model).items()
        running += item * sum(
            weights for part, weights in ends if not (part.isdigit() or part.endswith(OUTPUT_HEAD))
        )
    hidden = hidden_bytes(model, sequences, settings)
    states, paused = (
        0 if is_on_disk(size, settings) else size for size in (hidden, PAUSED_TIMES * hidden)
    )
    return RunSizes(running, states, paused, kept=_kept_by_loops(model, sequences, settings))


def _kept_by_loops(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> int:
    """What forwards that pause at experts keep on the device, of all tokens.

    Routes and gate weights; the group damage keeps also the place of each expert among the outputs
    that it keeps, which are of a token's experts and of one that would enter.
    """
    tokens = sequences.num_tokens + sequences.num_padded(settings.batch_size)
    top_k = max(layer.top_k for layer in model.layers)
    routes = _ROUTE_BYTES * top_k * tokens
    if "damage" not in settings.groups:
        return routes
    places = 8 * max(layer.num_experts for layer in model.layers) * tokens
    return routes + places + (top_k + 1) * hidden_bytes(model, sequences, settings)


def with_blocks(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> CalibrationSettings:
    """The settings of a streamed run with the number of experts to load at once.

    Refuses blocks that do not fit.
    """
    run = run_sizes(model, sequences, settings)
    at_once = experts_that_fit(model, settings, run)
    if at_once and not settings.placement.experts_at_once and "heads" in settings.groups:
        raise CheckpointError(
            f"A layer of {model.name} does not fit into memory, and those of prediction heads are "
            "loaded whole; leave out the group heads."
        )
    check_block(model, settings, run, at_once)
    return replace(settings, placement=replace(settings.placement, experts_at_once=at_once))


def _graph_bytes(model: MoEModel, settings: CalibrationSettings, tokens: int) -> int:
    """Bytes of a batch's activations that backward needs; 0 without the group `gradient`.

    Per token and layer, norms, projections and attention keep about 14 vectors of the hidden size,
    each routed expert 3 of its width and 2 of its output. Eager attention needs more.
    """
    if "gradient" not in settings.groups:
        return 0
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    width = max(max(widths) for widths in computed_widths(model).values())
    pair = 3 * width + 2 * model.expert_output_size
    layer = 14 * model.hidden_size + max(layer.top_k for layer in model.layers) * pair
    # The graph begins at the first layer with experts.
    layers = model.depth - model.layers[0].index
    if settings.placement.checkpoint_activations:
        return tokens * item * (layer + layers * model.hidden_size)
    return tokens * item * layer * layers


def check_fits(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> None:
    """Refuse a model that does not fit into memory, before it is loaded."""
    place = settings.placement
    if place.stream_layers or place.device_map:
        return
    needs = memory_needs(model, sequences, settings)
    if needs.whole_model <= needs.free:
        return
    by_layers = needs.in_blocks or needs.streamed
    sizes = (needs.whole_model, needs.free, needs.graph, by_layers)
    total, free, graph, streamed = (f"{size / _GIB:.1f} GiB" for size in sizes)
    if needs.graph:
        raise CheckpointError(
            f"{model.name} needs about {total}, {graph} of it for the activations that backward "
            f"needs, but {free} is free. Try {backward_options(needs.batch_size)}."
        )
    by_layer = f"With --stream-layers it needs about {streamed}; or spread"
    raise CheckpointError(
        f"{model.name} needs about {total}, but {free} is free. "
        f"{'Spread' if needs.inseparable else by_layer} it with "
        "--device-map auto --offload-folder DIR."
    )


def active_params(model: MoEModel) -> int:
    """Parameters in the matrix products of one token: top_k experts a layer, no embeddings."""
    return sum(active_by_layer(model).values())


def estimate(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> Estimate:
    """Expected memory and work, without loading the model; refuses one that cannot be loaded."""
    check_loadable(model, trusted=settings.trust_remote_code)
    needs = memory_needs(model, sequences, settings)
    padded = sequences.num_padded(settings.batch_size)
    times = TIMES_WITH_BACKWARD if "gradient" in settings.groups else 1.0
    active = active_params(model) * times
    if settings.placement.stream_layers and needs.experts_at_once:  # what surrounds them runs twice
        around = active_by_layer(model, experts=False)
        active += sum(around[layer] for layer in layers_in_blocks(model, needs.experts_at_once))
    by_layers = needs.in_blocks or needs.streamed
    return Estimate(
        memory_bytes=by_layers if settings.placement.stream_layers else needs.whole_model,
        needs=needs,
        costs={
            "read": cost("read", model.checkpoint.nbytes),
            "multiply": cost("multiply", active * (sequences.num_tokens + padded)),
        },
    )
