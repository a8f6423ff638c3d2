"""moeprune_manifest.json: what an export holds and where it came from. Written last.

It holds no time: the same plan and source give the same bytes.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from analysis.checkpoint.index import LONGEST_NAME
from analysis.errors import ExportError, PlanError, wrong_schema
from analysis.files.content import read_whole
from analysis.files.durable import PARTIAL
from analysis.files.json_text import parse_json_once
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import PruningPlan
from pruning.plan.plan_file import content_digest, plan_from_dict
from pruning.plan.widths import WidthChoice

MANIFEST_NAME = "moeprune_manifest.json"
SCHEMA_VERSION = 1
_LIBRARIES = ("numpy", "safetensors", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One written shard."""

    name: str  # file name
    bytes: int  # size of the file
    sha256: str  # of the whole file
    tensors: tuple[str, ...]  # names, in the order of their bytes
    copied: int  # tensors with the bytes of the source
    cut: int  # tensors that lost experts or neurons
    dropped: int  # tensors of the source's shard that the export lacks
    repaired: int = 0  # tensors with the bytes of a repair, cut or not
    dequantised: int = 0  # tensors in BF16 that are FP8 in the source

    def to_json(self) -> dict[str, Any]:
        """Its values; of `repaired` and `dequantised` only what there is."""
        rare = ("repaired", "dequantised")
        return {key: value for key, value in asdict(self).items() if key not in rare or value}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 of a written file that is no shard."""

    bytes: int
    sha256: str


def file_record(content: bytes) -> FileRecord:
    """The record of a file with this content."""
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The checkpoint that was pruned; never its path."""

    name: str  # the directory's name, or the hub id
    identity: str  # see `Checkpoint.identity`
    revision: str = ""  # of the hub id, as it was asked for; empty for the newest
    # Of all bytes of all shards, in the order of their names; empty unless asked for.
    content_sha256: str = ""

    def to_json(self) -> dict[str, str]:
        """Its values without the empty ones."""
        return {key: value for key, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that an export says about itself."""

    source: SourceRecord
    plan: PruningPlan  # complete
    heads: HeadPlan
    assumptions: tuple[str, ...]  # about a discovered architecture
    shards: tuple[ShardRecord, ...]  # in name order
    files: Mapping[str, FileRecord]  # by name, without the card, which people edit
    dropped_shards: tuple[str, ...]  # shards of the source of which nothing is left
    tool_version: str
    libraries: Mapping[str, str]  # name -> version
    widths: WidthChoice | None = None  # how widths are stored, if the plan removes neurons
    # The model that the plan was made for, if the source is a quantised copy of it.
    plan_source: SourceRecord | None = None
    padded: bool = False  # layers that keep fewer experts are filled up, see `padding`
    dequantised: bool = False  # FP8 of the source is in BF16
    # Files of the plan's repair, by name: SHA-256 of their bytes.
    repair_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def has_uniform_counts(self) -> bool:
        """Whether all sparse layers keep the same number of experts, as stock readers need."""
        return len({len(ids) for ids in self.plan.kept.values()}) == 1

    def to_json(self) -> str:
        """The content of the manifest file."""
        raw = {
            "schema_version": SCHEMA_VERSION,
            "tool_version": self.tool_version,
            "source": self.source.to_json(),
            **({"plan_source": self.plan_source.to_json()} if self.plan_source else {}),
            "plan_digest": self.plan.digest,
            "uniform_counts": self.has_uniform_counts,
            "plan": self.plan.to_dict(),
            "heads": self.heads.to_json(),
            **({"widths": self.widths.to_json()} if self.widths else {}),
            **({"padded": True} if self.padded else {}),
            **({"dequantised": True} if self.dequantised else {}),
            **({"discovered": list(self.assumptions)} if self.assumptions else {}),
            **({"repair_files": dict(self.repair_files)} if self.repair_files else {}),
            "shards": [shard.to_json() for shard in self.shards],
            "dropped_shards": list(self.dropped_shards),
            "files": {name: asdict(record) for name, record in self.files.items()},
            "libraries": dict(self.libraries),
        }
        return json.dumps(raw, indent=1, ensure_ascii=False) + "\n"


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries; nothing is imported."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def read_manifest(path: Path) -> Manifest:
    """The manifest of an exported checkpoint, checked against its digest."""
    if path.name.endswith(PARTIAL):
        raise ExportError(f"{path} is an unfinished export, by its name; export again.")
    try:
        raw = parse_json_once(read_whole(path / MANIFEST_NAME))
    except FileNotFoundError as error:
        raise ExportError(
            f"{path} has no {MANIFEST_NAME}, so it is not a finished export of this program; "
            "give the OUT of `moeprune export`."
        ) from error
    except (OSError, ValueError) as error:
        raise ExportError(f"{path / MANIFEST_NAME} cannot be read: {error}.") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        name = str(path / MANIFEST_NAME)
        raise ExportError(wrong_schema(name, version, SCHEMA_VERSION, "export again"))
    try:
        manifest = Manifest(
            source=SourceRecord(**raw["source"]),
            plan_source=SourceRecord(**raw["plan_source"]) if "plan_source" in raw else None,
            plan=plan_from_dict(raw["plan"]),
            heads=HeadPlan.from_json(raw["heads"]),
            widths=WidthChoice.from_json(raw["widths"]) if "widths" in raw else None,
            padded=raw.get("padded") is True,
            dequantised=raw.get("dequantised") is True,
            repair_files={str(k): str(v) for k, v in raw.get("repair_files", {}).items()},
            assumptions=tuple(map(str, raw.get("discovered", ()))),
            shards=tuple(
                ShardRecord(
                    name=_own_name(shard["name"]),
                    sha256=str(shard["sha256"]),
                    tensors=tuple(map(str, shard["tensors"])),
                    **{key: int(shard[key]) for key in ("bytes", "copied", "cut", "dropped")},
                    repaired=int(shard.get("repaired", 0)),
                    dequantised=int(shard.get("dequantised", 0)),
                )
                for shard in raw["shards"]
            ),
            files={
                _own_name(name): FileRecord(int(record["bytes"]), str(record["sha256"]))
                for name, record in raw["files"].items()
            },
            dropped_shards=tuple(raw["dropped_shards"]),
            tool_version=str(raw["tool_version"]),
            libraries=dict(raw["libraries"]),
        )
    # Raised by values of the wrong kind.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PlanError) as error:
        raise ExportError(f"{MANIFEST_NAME} is damaged: {error}") from error
    if manifest.plan.digest != raw.get("plan_digest"):
        raise ExportError(f"{MANIFEST_NAME} is damaged: its plan does not have its plan_digest.")
    repair = manifest.plan.repair
    if repair and repair.digest != content_digest(
        manifest.plan.unrepaired.digest, repair.corpora, repair.tokens, manifest.repair_files
    ):
        raise ExportError(f"{MANIFEST_NAME} is damaged: its repair_files are not its plan's.")
    if manifest.has_uniform_counts != raw.get("uniform_counts"):
        raise ExportError(f"{MANIFEST_NAME} is damaged: its uniform_counts is not its plan's.")
    return manifest


def _own_name(raw: Any) -> str:
    """The name of a file inside the export's folder."""
    name = str(raw)
    parts = PurePosixPath(name).parts
    is_long = any(len(part.encode()) > LONGEST_NAME for part in parts)
    if not parts or parts[0] == "/" or ".." in parts or is_long or not name.isprintable():
        raise ValueError(f"{name[:80]!r} is no file of the export's own folder.")
    return name
