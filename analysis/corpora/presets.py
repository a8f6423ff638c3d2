"""Datasets of the hub, and the presets of the papers."""

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.corpora.fields import DEFAULT_FIELDS, Fields

_UNIFIED = "arXiv:2606.15716"
_HALF_A_MILLION = 256 * 2048


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset of the hub."""

    repo: str  # owner/name
    config: str | None = None  # if the dataset has several
    split: str = "train"
    revision: str | None = None  # branch, tag or commit; None is the newest
    fields: Fields = DEFAULT_FIELDS


@dataclass(frozen=True, slots=True)
class BlendPart:
    """A dataset of a blend."""

    dataset: HubDataset
    conversations: int  # that are read of it

    @property
    def name(self) -> str:
        """What a local copy is called, before any ending."""
        return self.dataset.repo.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Preset:
    """A dataset or a blend of several, and how much of it a publication used."""

    dataset: HubDataset | None  # None: a blend
    tokens: int
    seq_len: int
    reference: str  # the paper
    join: str | None = None  # separator of rows if the dataset is one text
    seed: int = 42  # of the order
    blend: tuple[BlendPart, ...] = ()

    @property
    def fields(self) -> Fields:
        """The fields that are read; each part of a blend has its own."""
        return self.dataset.fields if self.dataset else DEFAULT_FIELDS


_EVOL = HubDataset(
    "theblackcat102/evol-codealpaca-v1",
    fields=Fields.only(prompt="instruction", response="output"),
)
# arXiv:2606.15716 says 0.5M tokens and gives no sequence length; 2048 is HEAPr's and ours.
PRESETS: Mapping[str, Preset] = {
    "c4": Preset(HubDataset("allenai/c4", "en"), _HALF_A_MILLION, 2048, _UNIFIED),
    "evol-codealpaca": Preset(_EVOL, _HALF_A_MILLION, 2048, _UNIFIED),
    "tool-calls": Preset(
        None,
        1360 * 2048,
        2048,
        "model cards of REAP",
        blend=(
            BlendPart(_EVOL, 700),
            BlendPart(HubDataset("Salesforce/xlam-function-calling-60k"), 330),
            BlendPart(HubDataset("SWE-bench/SWE-smith-trajectories", split="tool"), 330),
        ),
    ),
    "tulu-math": Preset(
        HubDataset("allenai/tulu-3-sft-personas-math"), _HALF_A_MILLION, 2048, _UNIFIED
    ),
    "wikitext2": Preset(
        HubDataset("Salesforce/wikitext", "wikitext-2-raw-v1"),
        128 * 2048,
        2048,
        "HEAPr, appendix B",
        join="\n\n",
        seed=0,
    ),
}
