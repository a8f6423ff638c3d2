"""What a run is and how it was made: its manifest, its model and corpora, its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.model.moe_model import ModelRef, MoEModel

MANIFEST = "manifest.json"
EXPERTS, VECTORS, WEIGHTS = "experts.parquet", "vectors.parquet", "weights.parquet"
SHARDS, ROUTER, COACTIVATION = "shards.parquet", "router.parquet", "coactivation.parquet"
NEURONS, HEADS = "neurons.parquet", "heads.parquet"
SAMPLES, TRANSITIONS = "samples.parquet", "transitions.parquet"
# Tables that a calibration run may have beside that of experts.
GROUP_TABLES = (SHARDS, ROUTER, COACTIVATION, NEURONS, SAMPLES, TRANSITIONS, HEADS)
SCHEMA_VERSION = 1
# Kinds of runs: of calibration, of weights, and of live traffic, which has counts of tokens alone.
RunKind = Literal["routed", "weights", "traffic"]
COUNTS_ALONE: Final = "traffic"
_MOST_EXPERTS = 1 << 16  # of a layer; a manifest that says more is damaged
_LONGEST_NAME = 4096  # of a corpus, as an option takes it


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

    name: str  # see `analysis.corpora.spec.corpus_name`
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

    kind: RunKind
    run_id: str  # name of the directory: readable words and 8 hex digits of the digest
    digest: str  # of everything that changes the numbers
    model: MeasuredModel
    corpora: tuple[CorpusRef, ...]  # several after a merge, none for weights
    settings: Mapping[str, Any]  # what changes the numbers: seq_len, seed, dtype
    made: Mapping[str, Any]  # what does not: versions, batch size, host, time, memory
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each data file
    schema_version: int = SCHEMA_VERSION
    groups: tuple[str, ...] = ()  # of a calibration run, see `analysis.stats.columns`

    @property
    def corpus(self) -> str:
        """Name of the corpus; names joined by + after a merge."""
        return "+".join(corpus.name for corpus in self.corpora)

    @property
    def num_tokens(self) -> int:
        """Calibration tokens of all corpora."""
        return sum(corpus.num_tokens for corpus in self.corpora)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run in a statistics directory."""

    path: Path
    manifest: RunManifest
    is_shipped: bool = False  # whether it was read where the program's own records lie

    @property
    def cache_key(self) -> tuple[str, ...]:
        """Path, digest and groups; groups can be added later."""
        return (str(self.path), self.manifest.digest, *self.manifest.groups)


def check_addable(runs: Sequence[Run]) -> None:
    """Check that the sums of these runs may be added."""
    first = runs[0].manifest
    digests: set[str] = set()
    for run in runs:
        other = run.manifest
        if other.kind == "weights":
            raise StatsError("Only calibration runs can be added, not weight statistics.")
        if first.model.identity != other.model.identity:
            raise StatsError(
                f"{first.run_id} and {other.run_id} are statistics of different models."
            )
        is_mixed = COUNTS_ALONE in (first.kind, other.kind)  # whose dtype is the server's
        if not is_mixed and first.settings["dtype"] != other.settings["dtype"]:
            raise StatsError(
                f"{first.run_id} was computed in {first.settings['dtype']}, {other.run_id} in "
                f"{other.settings['dtype']}; calibrate both in one dtype."
            )
        for corpus in other.corpora:
            if corpus.digest in digests:
                raise StatsError(
                    f"The tokens of {corpus.name} are in two of the runs; use them once."
                )
            digests.add(corpus.digest)


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a blend; `weight` is its corpus' share of the mix before normalisation."""

    run: Run
    weight: float = 1.0
