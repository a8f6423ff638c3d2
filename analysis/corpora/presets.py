"""Presets: the datasets of the papers, with the papers' settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.corpora.documents import DEFAULT_FIELDS, Fields

_UNIFIED = "arXiv:2606.15716"
_HALF_A_MILLION = 256 * 2048


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset of the hub."""

    repo: str  # owner/name
    config: str | None = None  # configuration, where the dataset has several
    split: str = "train"  # which part
    revision: str | None = None  # branch, tag or commit; None is the newest
    fields: Fields = DEFAULT_FIELDS  # names of its fields


@dataclass(frozen=True, slots=True)
class Preset:
    """A dataset, and how much of it a paper used."""

    dataset: HubDataset  # where it is
    tokens: int  # tokens used
    seq_len: int  # tokens in a sequence
    reference: str  # the paper
    # What stands between rows where the whole dataset is one text; None where each row is a
    # document of its own.
    join: str | None = None
    seed: int = 42  # of the order


# arXiv:2606.15716 says 0.5M tokens and gives no sequence length; 2048 is HEAPr's and ours.
PRESETS: Mapping[str, Preset] = {
    "c4": Preset(HubDataset("allenai/c4", "en"), _HALF_A_MILLION, 2048, _UNIFIED),
    "evol-codealpaca": Preset(
        HubDataset(
            "theblackcat102/evol-codealpaca-v1",
            fields=Fields.only(prompt="instruction", response="output"),
        ),
        _HALF_A_MILLION,
        2048,
        _UNIFIED,
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
