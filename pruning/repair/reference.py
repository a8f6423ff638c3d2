"""The repair that a plan names: new down projections of kept experts, in files by layer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.errors import PlanError

REPAIRS = "repairs"  # folder of records and files, in a statistics folder
_ID = re.compile(r"[\w.+-]{1,200}")


def layer_file(layer: int) -> str:
    """Name of the file of a layer's new projections."""
    return f"layer-{layer:05d}.safetensors"


def repaired_name(name: str) -> str:
    """What a plan of this name is called once it is repaired."""
    return f"{name} + repair"


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair, by its record; with its files once they are found."""

    record_id: str
    digest: str  # of all that decides it: model, plan, text, settings
    corpora: tuple[str, ...] = ()  # names of those that it was fitted on
    tokens: int = 0  # of them together
    folder: Path | None = field(default=None, compare=False)  # of its files

    def to_dict(self) -> dict[str, Any]:
        """As in plan.json."""
        return {
            "record_id": self.record_id,
            "digest": self.digest,
            "corpora": list(self.corpora),
            "tokens": self.tokens,
        }

    def among(self, directories: Iterable[Path]) -> "Repair":
        """With its files, which lie in one of these statistics folders."""
        for directory in directories:
            record = directory / REPAIRS / f"{self.record_id}.json"
            if record.is_file():
                return replace(self, folder=record.with_suffix(""))
        raise PlanError(
            f"The plan names the repair {self.record_id}, which is not in the statistics folder; "
            "make it again with `moeprune repair`, or name its folder with --stats-dir."
        )

    def file(self, layer: int) -> Path:
        """The file of a layer, which may be absent."""
        if self.folder is None:
            raise PlanError(f"The files of the repair {self.record_id} were not looked up.")
        return self.folder / layer_file(layer)


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
        } if not others and _ID.fullmatch(record_id):
            return Repair(record_id, digest, tuple(map(str, corpora)), tokens)
    raise PlanError(
        "The plan's 'repair' needs record_id, digest, corpora and tokens, as `moeprune repair` "
        "writes them."
    )
