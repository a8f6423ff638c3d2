"""ExpertStats and WeightStats: what a run measured, as tables with fixed columns; manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Literal, get_args

from analysis.cache_keys import Numbered
from analysis.errors import StatsError
from analysis.families import MoELayer
from analysis.lazy import pd
from analysis.model.moe_model import ModelRef, MoEModel
from analysis.stats.grid import Grid
from analysis.stats.samples import SamplePart

SCHEMA_VERSION = 1
_MOST_EXPERTS = 1 << 16  # of a layer; a manifest that says more is damaged
_LONGEST_NAME = 4096  # of a corpus, as an option takes it
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


@dataclass(frozen=True, slots=True)
class MeasuredModel(ModelRef):
    """The model that statistics belong to, described well enough to read them without it."""

    model_type: str
    layers: tuple[MoELayer, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; layers as [index, num_experts, top_k] and, with groups, the two counts."""
        layers = [astuple(layer) for layer in self.layers]
        layers = [layer if layer[3:] != (1, 1) else layer[:3] for layer in layers]
        names = {"name": self.name, "identity": self.identity, "model_type": self.model_type}
        return {**names, "layers": list(map(list, layers))}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> MeasuredModel:
        """Inverse of `to_json`."""
        layers = tuple(MoELayer(*numbers) for numbers in raw["layers"])
        for numbers, layer in zip(raw["layers"], layers, strict=True):
            fits = all(type(number) is int for number in numbers)
            fits = fits and 0 <= layer.index <= _MOST_EXPERTS
            fits = fits and 1 <= layer.num_groups <= layer.num_experts
            if not (fits and 1 <= layer.top_k <= layer.num_experts <= _MOST_EXPERTS):
                raise ValueError(f"{numbers} is not a layer of experts")
        indices = [layer.index for layer in layers]
        if not layers or indices != sorted(set(indices)):
            raise ValueError("the layers are not in ascending order")
        return cls(raw["name"], raw["identity"], raw["model_type"], layers)


def measured_model(model: MoEModel) -> MeasuredModel:
    """A manifest's entry of a model."""
    return MeasuredModel(model.name, model.identity, model.family.model_type, model.layers)


@dataclass(frozen=True, slots=True)
class CorpusRef:
    """The tokens that a run saw."""

    name: str  # see `analysis.corpora.corpus_name`
    digest: str  # see `TokenSequences.digest`
    num_documents: int  # fed, like sequences and tokens
    num_sequences: int
    num_tokens: int  # without padding
    num_padded: int  # padding positions in the batches
    num_dropped: int  # tokens read but left out
    num_counted: int  # tokens that entered the sums
    num_dropped_documents: int = 0  # documents read but not fed at all
    prepared: Mapping[str, Any] = field(default_factory=dict)  # packing, truncation, source, ...
    path: str = ""  # folder and name of its file; a hint for people, since files move


def corpus_from_json(raw: Mapping[str, Any]) -> CorpusRef:
    """A manifest's entry of a corpus; a TypeError or ValueError if it is not one."""
    corpus = CorpusRef(**raw)
    for name, value in raw.items():
        if name == "prepared":
            dict(value)
        elif type(value) is not (str if name in ("name", "digest", "path") else int):
            raise ValueError(f"{value!r} is not a {name} of a corpus")
    if not 0 < len(corpus.name) <= _LONGEST_NAME:
        raise ValueError(f"a corpus has a name of {len(corpus.name)} characters")
    return corpus


@dataclass(frozen=True, slots=True)
class RunManifest:
    """What a run is and how it was made; `manifest.json` of a run directory."""

    kind: Literal["routed", "weights"]  # of calibration, or weight statistics
    run_id: str  # name of the directory: readable words and 8 hex digits of the digest
    digest: str  # of everything that changes the numbers
    model: MeasuredModel
    corpora: tuple[CorpusRef, ...]  # several after a merge, none for weights
    settings: Mapping[str, Any]  # what changes the numbers: seq_len, seed, dtype
    made: Mapping[str, Any]  # what does not: versions, batch size, host, time, memory
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each data file
    schema_version: int = SCHEMA_VERSION
    groups: tuple[str, ...] = ()  # of a calibration run, see `analysis.stats.groups`

    @property
    def corpus(self) -> str:
        """Name of the corpus; names joined by + after a merge."""
        return "+".join(corpus.name for corpus in self.corpora)

    @property
    def num_tokens(self) -> int:
        """Calibration tokens of all corpora."""
        return sum(corpus.num_tokens for corpus in self.corpora)


def _check_cover(table: pd.DataFrame, grid: Grid, what: str) -> None:
    if not table[["layer", "expert"]].reset_index(drop=True).equals(grid.index()):
        raise StatsError(f"The {what} do not cover every expert of every layer exactly once.")


@dataclass(frozen=True, eq=False)
class _RunTable(Numbered):
    """A table of a run, and the run's manifest."""

    manifest: RunManifest
    table: pd.DataFrame

    @property
    def layers(self) -> tuple[MoELayer, ...]:
        """The model's sparse layers."""
        return self.manifest.model.layers

    @property
    def grid(self) -> Grid:
        """Shape of the arrays made from the table."""
        return Grid(self.layers)


@dataclass(frozen=True, eq=False)
class ExpertStats(_RunTable):
    """Routed-token sums of a run.

    `table` has EXPERT_COLUMNS, sorted by layer and expert, and the columns of further groups
    (`analysis.stats.groups.GROUP_COLUMNS`); a part of a run lacks what is stored for all tokens
    only. `samples` are those of the group `dense`, one entry per run; empty if a run lacks them.
    """

    samples: tuple[SamplePart, ...] = ()

    def __post_init__(self) -> None:
        needed = [column for column in EXPERT_COLUMNS if column not in OPTIONAL_COLUMNS]
        if missing := [column for column in needed if column not in self.table]:
            raise StatsError(f"The statistics lack the columns {', '.join(missing)}.")
        _check_cover(self.table, self.grid, "statistics")


@dataclass(frozen=True, eq=False)
class WeightStats(_RunTable):
    """Weight norms of a model; for `table` see `analysis.calibration.weights.measure_weights`."""

    def __post_init__(self) -> None:
        per_expert = self.table.drop_duplicates(["layer", "expert"])
        _check_cover(per_expert, self.grid, "weight statistics")

    def per_expert(self) -> pd.DataFrame:
        """Table `layer, expert, l1, l2_squared, numel`, summed over the projections."""
        columns = ["l1", "l2_squared", "numel"]
        return self.table.groupby(["layer", "expert"], as_index=False)[columns].sum()


@dataclass(frozen=True)
class NoStats:
    """For criteria that read no statistics: only which experts there are."""

    layers: tuple[MoELayer, ...]

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    @property
    def grid(self) -> Grid:
        """Shape of the arrays made from the table."""
        return Grid(self.layers)

    @property
    def table(self) -> pd.DataFrame:
        """Table `layer, expert`."""
        return self.grid.index()
