"""The tables of a run, made from the sums of a finished calibration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.calibration.sums import GroupSums, Widths
from analysis.corpora.sequences import TOKEN_SHARDS
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST, MOMENT_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.manifest import (
    COACTIVATION,
    HEADS,
    NEURONS,
    ROUTER,
    SAMPLES,
    SHARDS,
    TRANSITIONS,
    Run,
    RunManifest,
)
from analysis.stats.neurons import expert_columns
from analysis.stats.samples import SampleStats, transition_table
from analysis.stats.shards import add_shards
from analysis.stats.writing import save_expert_stats

Array = NDArray[Any]
Get = Callable[..., Array]


def store_run(parent: Path, manifest: RunManifest, sums: GroupSums) -> Run:
    """Store a finished calibration in the directory `parent`."""
    tensors, grid = sums.tensors(), Grid(manifest.model.layers)

    def get(name: str, change: Callable[[Array], Array] = lambda array: array) -> Array:
        """Sums of this name, concatenated over the layers in order."""
        layers = (layer.index for layer in grid.layers)
        return np.concatenate([change(tensors[f"{name}.{layer}"].numpy()) for layer in layers])

    tables = {SHARDS: _shard_table(manifest, get)}
    if "router" in sums.groups:
        tables[ROUTER] = grid.index().assign(
            probability_sum=get("probabilities"),
            entropy_sum=np.repeat(get("entropy"), grid.counts),
            num_tokens=np.repeat(get("tokens"), grid.counts),
        )
        pairs = [
            (layer.index, expert, other)
            for layer in grid.layers
            for expert in range(layer.num_experts)
            for other in range(expert, layer.num_experts)
        ]
        coactivation = pd.DataFrame(pairs, columns=["layer", "expert", "other"]).astype("int64")
        # The upper triangle row by row, in the order of the pairs.
        counts = get("coactivation", lambda square: square[np.triu_indices(len(square))])
        tables[COACTIVATION] = coactivation.assign(num_tokens=counts)
    experts = add_shards(tables[SHARDS]).assign(**{LARGEST: get("largest")})
    if "heads" in sums.groups:
        tables[HEADS] = _head_table(sums)
    if "gradient" in sums.groups:
        tables[NEURONS] = _neuron_table(get, sums.widths)
        experts = experts.join(expert_columns(tables[NEURONS], grid))
    if "dense" in sums.groups:
        squares = [sums.of("transitions", layer.index).cpu() for layer in grid.layers[1:]]
        # The same in every layer.
        num_tokens = get("dense_tokens").reshape(len(grid.layers), -1)[0]
        names = ("dense_activation", "dense_probability", "dense_loss")
        activation, probability, loss = (get(name, lambda sums: sums.T).T for name in names)
        samples = SampleStats(grid, num_tokens, activation, probability, loss)
        tables[SAMPLES] = samples.to_table()
        tables[TRANSITIONS] = transition_table(grid, [counts.numpy() for counts in squares])
    return save_expert_stats(parent, manifest, experts, get("vectors"), tables)


def _shard_table(manifest: RunManifest, get: Get) -> pd.DataFrame:
    index = Grid(manifest.model.layers).index()
    repeated = index.loc[index.index.repeat(TOKEN_SHARDS)].reset_index(drop=True)
    repeated["shard"] = np.tile(np.arange(TOKEN_SHARDS, dtype=np.int64), len(index))
    moments = get("moments", lambda sec: sec.transpose(1, 0, 2).reshape(-1, sec.shape[2]))
    table = pd.concat([repeated, pd.DataFrame(moments, columns=list(MOMENT_COLUMNS))], axis=1)
    table["num_tokens"] = table["num_tokens"].astype("int64")
    if "damage" in manifest.groups:
        table["damage"] = get("damage", lambda se: se.T.reshape(-1))
    return table


def _head_table(sums: GroupSums) -> pd.DataFrame:
    """The experts of prediction heads, as those of the trunk."""
    parts = []
    for number in sums.heads:
        moments_EC = sums.of("moments", number).sum(dim=0).cpu().numpy()
        vectors_ED = sums.of("vectors", number).cpu().numpy()
        table = pd.DataFrame(moments_EC, columns=list(MOMENT_COLUMNS))
        table.insert(0, "layer", number)
        table.insert(1, "expert", range(len(table)))
        largest_E = sums.of("largest", number).cpu().numpy()
        more = {"vector_sum_sq": (vectors_ED**2).sum(axis=1), LARGEST: largest_E}
        parts.append(table.assign(**more))
    frame = pd.concat(parts, ignore_index=True)
    return frame.astype(dict(EXPERT_COLUMNS))[list(EXPERT_COLUMNS)]


def _neuron_table(get: Get, widths: Widths) -> pd.DataFrame:
    index = [
        (layer, expert, width) for layer in widths for expert, width in enumerate(widths[layer])
    ]
    layers, experts, counts = np.array(index, dtype=np.int64).T
    # Sums are as wide as the widest expert of a layer; narrower ones leave the rest unused.
    present = {
        layer: np.arange(max(of))[None, :] < np.array(of)[:, None] for layer, of in widths.items()
    }
    chosen = np.concatenate([mask.reshape(-1) for mask in present.values()])
    sums = {"output_sq": "outputs", "slope_sq": "slopes", "output_max": "peaks"}
    return pd.DataFrame(
        {
            "layer": np.repeat(layers, counts),
            "expert": np.repeat(experts, counts),
            "neuron": np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
            **{
                column: get(name, lambda square: square.reshape(-1))[chosen]
                for column, name in sums.items()
            },
        }
    )


def group_facts(manifest: RunManifest, sums: GroupSums) -> dict[str, Any]:
    """What the manifest's `made` says of the groups, in addition to their tables."""
    if "damage" not in sums.groups:
        return {}
    tensors = sums.tensors()
    extra = {
        str(layer.index): round(
            int(tensors[f"extra.{layer.index}"]) / max(1, int(tensors[f"counted.{layer.index}"])), 4
        )
        for layer in manifest.model.layers
    }
    grouped = any(layer.num_groups > 1 for layer in manifest.model.layers)
    removal = "masked inside its group" if grouped else "cut out of the router"
    return {"damage": {"extra_experts_per_token": extra, "removed_expert": removal}}
