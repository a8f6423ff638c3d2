"""Statistic groups: what a calibration collects, by the names that `--group` takes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, get_args

Group = Literal["routed", "router", "damage", "gradient", "dense", "heads"]
GROUPS: tuple[Group, ...] = get_args(Group)
# Columns that a group adds to the table of experts; those of `dense` are made from samples.parquet.
GROUP_COLUMNS: Mapping[Group, tuple[str, ...]] = {
    "damage": ("damage",),
    "gradient": ("neuron_product", "neuron_norm_sum", "neuron_peak_sum"),
    "dense": ("path_samples", "path_weight", "node_weight"),
}


def ordered(names: Sequence[str]) -> tuple[Group, ...]:
    """The groups among `names` in the order of GROUPS, with `routed`."""
    return tuple(group for group in GROUPS if group == "routed" or group in names)


def misfit(groups: Collection[str], *, streams_layers: bool, checkpoints: bool) -> str:
    """Why these groups cannot be collected in this way; empty if they can."""
    if "gradient" in groups and streams_layers:
        return (
            "the group gradient needs all layers in memory for its backward pass; leave out "
            "--stream-layers, or spread the model with --device-map auto"
        )
    if checkpoints and "gradient" not in groups:
        return "--checkpoint-activations is for the group gradient: --group gradient"
    return ""


def groups_for(columns: Collection[str]) -> tuple[Group, ...]:
    """The groups to collect for a table with these columns."""
    return ordered(
        [group for group, added in GROUP_COLUMNS.items() if not set(added).isdisjoint(columns)]
    )
