"""Verify an export: its bytes, that it loads, that its logits match the masked original."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil

from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import ExportError, unknown_name
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.progress import Progress
from pruning.plan.plan import PruningPlan
from pruning.plan.shown import DisplayMixin, Facts
from pruning.plan.sizes import format_bytes
from pruning.surgery.checks import Check, check_against_source, check_bytes
from pruning.surgery.manifest import Manifest, read_manifest
from pruning.surgery.repair_checks import with_files

# Besides the weights: the converted copy of a layer while loading, activations, libraries.
_MEMORY_FACTOR, _MEMORY_EXTRA = 1.25, 1 << 29
_ASKED_FOR = "as asked for"


class Level(StrEnum):
    """How far a verification goes; each level includes those before it."""

    BYTES = "bytes"
    LOAD = "load"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(DisplayMixin):
    """The outcome of a verification."""

    level: Level  # reached
    reason: str  # why no higher level; one line
    checks: tuple[Check, ...]
    # Largest difference of logits from the masked original; None below `logits`.
    max_abs_diff: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every check passes."""
        return all(check.ok for check in self.checks)

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows."""
        failed = [f"{check.name}: {check.detail}" for check in self.checks if not check.ok]
        return {
            "ok": self.ok,
            "level": str(self.level),
            "checks": len(self.checks),
            "failed": "; ".join(failed) or "none",
            "largest_logit_difference": "not compared"
            if self.max_abs_diff is None
            else self.max_abs_diff,
        }


def logits_memory(source: MoEModel, plan: PruningPlan) -> int:
    """Bytes of memory for the logits level, which loads one model after the other."""
    # In float32, or float64 if neurons are removed, see `check_logits`.
    weights = source.num_params * (8 if plan.kept_neurons else 4)
    return int(weights * _MEMORY_FACTOR) + _MEMORY_EXTRA


def _choose(level: str | None, manifest: Manifest, source: MoEModel | None) -> tuple[Level, str]:
    names = [member.value for member in Level]
    if level is not None and level not in names:
        raise ExportError(unknown_name("level", level, names))
    if level == Level.LOGITS and source is None:
        raise ExportError(
            "The level 'logits' compares with the source; give its directory (--source), or use "
            "the level 'load'."
        )
    repair = manifest.plan.repair
    missing = repair.record_id if repair and repair.folder is None else ""
    if level == Level.LOGITS and missing:
        raise ExportError(
            f"The level 'logits' needs the files of the repair {missing}; name their statistics "
            "folder (--stats-dir), or use the level 'load'."
        )
    if level:
        return Level(level), _ASKED_FOR
    available = psutil.virtual_memory().available

    def needs(nbytes: int) -> str:
        return f"needs {format_bytes(nbytes)} of memory, {format_bytes(available)} are available"

    lacking = "no source was given to compare logits with"
    if missing:
        lacking = f"the files of the repair {missing}, which logits need, are not here"
    elif source is not None:
        needed = logits_memory(source, manifest.plan)
        if needed <= available:
            return Level.LOGITS, f"the highest level: it {needs(needed)}"
        lacking = f"the level 'logits' {needs(needed)}"
    to_load = int(manifest.nbytes * _MEMORY_FACTOR) + _MEMORY_EXTRA
    if to_load <= available:
        return Level.LOAD, lacking
    return Level.BYTES, f"the level 'load' {needs(to_load)}"


def verify_export(
    path: Path,
    *,
    level: str | None = None,
    source: Path | None = None,
    tokens: int = 128,
    directories: Sequence[Path] = (),
) -> Generator[Progress, None, VerifyReport]:
    """Verify an exported checkpoint; returns the report.

    A level starts only if all checks before it pass. The default is the highest level that memory
    allows; `logits` needs the source, the checkpoint that was exported. With the source, every
    tensor of it is accounted for, and every byte of the export is compared with it. `tokens` random
    tokens are run, rounded up to whole rows. The files of a repair are looked for in statistics
    folders, `directories`; without them its bytes and logits are not compared.
    """
    if not path.is_dir():
        raise ExportError(f"{path} is not a directory; give the folder of an export.")
    if tokens < 1:
        raise ExportError(f"{tokens} tokens say nothing; run at least 1.")
    original = describe_model(open_checkpoint(source), name=source.name) if source else None
    try:
        manifest = read_manifest(path)
    except ExportError as error:
        return VerifyReport(Level.BYTES, "no manifest", (Check("manifest", False, str(error)),))
    manifest = with_files(manifest, directories)
    goal, reason = _choose(level, manifest, original)
    made_by = f"plan {manifest.plan.digest[:8]}, written by version {manifest.tool_version}"
    checks = (Check("manifest", True, made_by), *(yield from check_bytes(path, manifest)))
    is_intact = all(check.ok for check in checks)
    if original:
        checks = (*checks, *(yield from check_against_source(path, manifest, original)))
    if not is_intact:
        return VerifyReport(Level.BYTES, "the bytes are not those of the export", checks)
    if not all(check.ok for check in checks):
        return VerifyReport(Level.BYTES, "the source given does not lead to this export", checks)
    report = VerifyReport(goal, reason, checks)
    if goal is Level.BYTES:
        return report
    return (yield from _verify_forward(path, original, manifest, report, tokens))


def _verify_forward(
    path: Path, original: MoEModel | None, manifest: Manifest, report: VerifyReport, tokens: int
) -> Generator[Progress, None, VerifyReport]:
    """The load level, and the logits level if the report aims at it."""
    # Imported here, as the dashboard imports this module and must start without torch.
    from analysis.calibration.loading import why_not_loaded
    from pruning.surgery.forward_checks import check_load, check_logits, random_tokens

    exported = describe_model(open_checkpoint(path))
    if why := why_not_loaded(exported):
        if report.reason == _ASKED_FOR:
            raise ExportError(f"The level '{report.level}' is not possible: {why}; use 'bytes'.")
        unknown = f"not checked: whether it loads, and its logits, as {why}"
        return replace(report, level=Level.BYTES, reason=unknown)
    ids = random_tokens(exported, tokens)
    yield Progress("loading", 0, 1, "models")
    load = check_load(exported, ids)
    report = replace(report, checks=(*report.checks, load))
    if not load.ok:
        return replace(report, level=Level.LOAD, reason="the export does not load or run")
    if report.level is Level.LOAD or original is None:
        return report
    yield Progress("comparing logits", 0, 1, "models")
    check, difference = check_logits(
        exported, original, manifest.plan, ids, dequantised=manifest.dequantised
    )
    return replace(report, checks=(*report.checks, check), max_abs_diff=difference)
