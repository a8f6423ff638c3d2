"""The repair that a plan names: new down projections of kept experts, in files by layer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.errors import PlanError
from analysis.files.naming import digest_of
from pruning.plan.bits import bits_words
from pruning.plan.experts_per_token import top_k_words

REPAIRS = "repairs"  # folder of records and files, in a statistics folder
_THOUSANDS = 10_000  # tokens from which names count thousands
FORWARDS = 6  # of the text, that a whole repair takes at most, fitting included
_ID = re.compile(r"[\w+-][\w.+-]{0,199}")


def layer_file(layer: int) -> str:
    """Name of the file of a layer's new projections."""
    return f"layer-{layer:05d}.safetensors"


def tokens_words(tokens: int) -> str:
    """How many tokens a repair was fitted on, for names: 32k of 32,256."""
    return f"{tokens // 1000}k tokens" if tokens >= _THOUSANDS else f"{tokens:,} tokens"


def repaired_name(name: str, tokens: int = 0) -> str:
    """What a plan of this name is called once it is repaired on so many tokens, if known."""
    return f"{name} + repair{f' on {tokens_words(tokens)}' if tokens else ''}"


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair, by its record; with its files once they are found."""

    record_id: str
    digest: str  # of its plan, its text and the bytes of its files
    corpora: tuple[str, ...] = ()  # names of those that it was fitted on
    tokens: int = 0  # of them together
    folder: Path | None = field(default=None, compare=False)  # of its files

    @property
    def words(self) -> str:
        """What it was fitted on, for people."""
        return f"fitted on {self.tokens:,} tokens of {', '.join(self.corpora) or 'unknown corpora'}"

    def to_dict(self) -> dict[str, Any]:
        """As in plan.json."""
        return {
            "record_id": self.record_id,
            "digest": self.digest,
            "corpora": list(self.corpora),
            "tokens": self.tokens,
        }

    @property
    def files(self) -> dict[str, Path]:
        """Name -> file of all layers that gained something, as far as they are here."""
        paths = sorted(self.folder.glob("layer-*.safetensors")) if self.folder else ()
        return {path.name: path for path in paths}

    def file(self, layer: int) -> Path:
        """The file of a layer, which may be absent."""
        if self.folder is None:
            raise PlanError(f"The files of the repair {self.record_id} were not looked up.")
        return self.folder / layer_file(layer)


def variant_words(
    repaired_on: str, calibrated_on: str, bits: str = "", top_k: str = "", tokens: int = 0
) -> str:
    """What follows the name of a plan that is repaired, in fewer bits, or selects fewer; or empty.

    Corpora are joined by +, as in tables. Those that the repair was fitted on are named unless they
    ranked the plan, with any weights; how many `tokens` they have is said if it is known.
    """
    repair = _repair_words(repaired_on, calibrated_on, tokens)
    return repair + bits_words(bits) + top_k_words(top_k)


def _repair_words(repaired_on: str, calibrated_on: str, tokens: int) -> str:
    if not repaired_on:
        return ""
    names = repaired_on.split("+")
    ranked_on = {name.rpartition(":")[0] or name for name in calibrated_on.split("+")}
    where = repaired_on if len(names) < 3 else f"{len(names)} corpora"
    of = "" if set(names) == ranked_on else where
    if not tokens:
        return f" + repair on {of}" if of else " + repair"
    return f" + repair on {tokens_words(tokens)}{f' of {of}' if of else ''}"


def repair_from_json(raw: object) -> Repair | None:
    """The repair that a plan.json names, if it names one."""
    if raw is None:
        return None
    match raw:
        case {
            "record_id": str(record_id),
            "digest": str(digest),
            "corpora": list(corpora),
            "tokens": int(tokens),
            **others,
        } if not others and _ID.fullmatch(record_id) and _are_facts(corpora, tokens):
            return Repair(record_id, digest, tuple(corpora), tokens)
    raise PlanError(
        "The plan's 'repair' needs record_id, digest, corpora and tokens, as `moeprune repair` "
        "writes them."
    )


def _are_facts(corpora: list[Any], tokens: int) -> bool:
    return tokens > 0 and tokens is not True and all(isinstance(corpus, str) for corpus in corpora)


def content_digest(
    plan_digest: str, corpora: Sequence[str], tokens: int, files: Mapping[str, str]
) -> str:
    """The identity of a repair: of its plan, text and files, as 64 hex digits."""
    decides = {
        "plan": plan_digest,
        "corpora": list(corpora),
        "tokens": tokens,
        "files": dict(files),
    }
    return digest_of(decides)
