"""Columns of the tables of statistics, the groups that add some, and what a table may lack."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, get_args

Gate = Literal["applied", "renormalized"]
GATES: tuple[Gate, ...] = get_args(Gate)
EXPONENTS = (0, 1, 2)


def moment_column(alpha: int, beta: int, gate: Gate) -> str:
    """Column of sum_t g^alpha ||f||^beta; alpha = 0 does not depend on the gate convention."""
    if (alpha, beta) == (0, 0):
        return "num_tokens"
    return f"g0_f{beta}" if alpha == 0 else f"{gate}_g{alpha}_f{beta}"


# Fifteen sums; the first is a count.
MOMENT_COLUMNS = tuple(
    dict.fromkeys(
        moment_column(alpha, beta, gate)
        for gate in GATES
        for alpha in EXPONENTS
        for beta in EXPONENTS
    )
)
# max over tokens and features of |f|, f before the gate weight. A maximum, which merges by the
# larger one; whole runs have it, and those of versions before it do not.
LARGEST = "largest_output"
EXPERT_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("layer", "expert", "num_tokens"), "int64"),
    **{column: "float64" for column in MOMENT_COLUMNS if column != "num_tokens"},
    "vector_sum_sq": "float64",  # || sum_t f ||^2, for MoNE
    LARGEST: "float64",
}
# One row per projection of an expert.
WEIGHT_COLUMNS: Mapping[str, str] = {
    "layer": "int64",
    "expert": "int64",
    "projection": "object",
    "l1": "float64",
    "l2_squared": "float64",
    "numel": "int64",
}
COUNT_COLUMNS = ("layer", "expert", "num_tokens")  # all that traffic has
# Statistic groups: what a calibration collects, by the names that `--group` takes.
Group = Literal["routed", "router", "damage", "gradient", "dense", "heads"]
GROUPS: tuple[Group, ...] = get_args(Group)
# Columns that a group adds to the table of experts; those of `dense` are made from samples.parquet.
GROUP_COLUMNS: Mapping[Group, tuple[str, ...]] = {
    "damage": ("damage",),
    "gradient": ("neuron_product", "neuron_norm_sum", "neuron_peak_sum"),
    "dense": ("path_samples", "path_weight", "node_weight"),
}
_OF_ONE_CORPUS = (
    "calibrate with --group gradient; it holds maxima, which blends and parts do not have"
)
# Columns that a table may lack, and what to do about it.
OPTIONAL_COLUMNS: Mapping[str, str] = {
    "vector_sum_sq": "it is stored for all tokens together only",
    LARGEST: "the run is of an earlier version; remove it and calibrate again",
    "damage": "calibrate with --group damage",
    "neuron_product": "calibrate with --group gradient",
    "neuron_norm_sum": _OF_ONE_CORPUS,
    "neuron_peak_sum": _OF_ONE_CORPUS,
    "path_samples": "calibrate with --group dense; it counts whole samples, which a part "
    "of a run does not have",
}


def needed_columns(kind: str) -> tuple[str, ...]:
    """Columns that the table of experts of a run of this kind must have."""
    if kind == "traffic":
        return COUNT_COLUMNS
    return tuple(name for name in EXPERT_COLUMNS if name not in OPTIONAL_COLUMNS)


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
