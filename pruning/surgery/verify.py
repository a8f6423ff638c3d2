"""Verify an export: its bytes, that it loads, that its logits match the masked original."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from importlib import import_module
from pathlib import Path

from analysis.calibration.free import free_memory
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import with_steps
from analysis.errors import ExportError, UnsupportedModelError, UserError, unknown_name
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, Progress, Tally, added, bytes_in
from pruning.plan.plan import PruningPlan
from pruning.plan.shown import DisplayMixin, Facts
from pruning.plan.sizes import format_bytes
from pruning.surgery.checks import Check
from pruning.surgery.layer_memory import MEMORY_EXTRA, MEMORY_FACTOR, layer_memory
from pruning.surgery.manifest import Manifest, read_manifest
from pruning.surgery.one_pass import ContentChecks, check_contents
from pruning.surgery.repair_checks import with_files
from pruning.surgery.verify_costs import (
    CHECK_TOKENS,
    ForwardPass,
    Sides,
    check_costs,
    compared_dtype,
    costs_in_step,
    item_bytes,
    run_costs,
    token_shape,
)

# Of a comparison of bytes: Python with its libraries, and two blocks.
_BYTES_MEMORY = 160 << 20
_ASKED_FOR = "as asked for"
_STREAMED = "--stream-layers"


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


def logits_memory(source: MoEModel, plan: PruningPlan, *, by_layers: bool = False) -> int:
    """Bytes of memory for the logits level, which loads one model after the other.

    By layers, it loads one layer at a time, or blocks of its experts.
    """
    item = item_bytes(source, compared_dtype(plan))
    if not by_layers:
        return int(source.num_params * item * MEMORY_FACTOR) + MEMORY_EXTRA
    return layer_memory(source, item, repaired=plan.repair is not None).nbytes


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is asked of a verification, and what decides its level."""

    level: str | None  # asked for; None: the highest that memory allows
    by_layers: bool
    path: Path  # of the export
    manifest: Manifest
    source: MoEModel | None

    @property
    def exported(self) -> MoEModel:
        """The export, as it describes itself."""
        return describe_model(open_checkpoint(self.path))

    @property
    def _is_inseparable(self) -> bool:
        try:
            return bool((self.source or self.exported).inseparable)
        except UserError:  # the checks of its bytes say so
            return False

    @property
    def missing(self) -> str:
        """The repair whose files are elsewhere."""
        repair = self.manifest.plan.repair
        return repair.record_id if repair and repair.folder is None else ""

    def check(self) -> None:
        """Refuse a level that is unknown, or lacks what it needs."""
        names = [member.value for member in Level]
        if self.level is not None and self.level not in names:
            raise ExportError(unknown_name("level", self.level, names))
        if self.level == Level.BYTES and self.by_layers:
            raise ExportError(f"The level 'bytes' runs no layers; leave {_STREAMED} out.")
        if self.level == Level.LOGITS and self.source is None:
            raise ExportError(
                "The level 'logits' compares with the source; give its directory (--source), or "
                "use the level 'load'."
            )
        if self.level == Level.LOGITS and self.missing:
            raise ExportError(
                f"The level 'logits' needs the files of the repair {self.missing}; name their "
                "statistics folder (--stats-dir), or use the level 'load'."
            )

    def import_libraries(self) -> None:
        """Import what runs layers, before free memory decides how many experts are loaded at once.

        Libraries take address space, which may be limited.
        """
        if self.by_layers:
            import_module("pruning.surgery.streamed_run")

    def choose(self) -> tuple[Level, str]:
        """The level to reach, and why no higher one."""
        if self.level:
            return Level(self.level), _ASKED_FOR
        lacking = "no source was given to compare logits with"
        if self.missing:
            lacking = f"the files of the repair {self.missing}, which logits need, are not here"
        elif self.source:
            fits, words = self._fits(Level.LOGITS)
            if fits:
                return Level.LOGITS, f"the highest level: it {words}"
            lacking = f"the level 'logits' {words}"
        fits, words = self._fits(Level.LOAD)
        return (Level.LOAD, lacking) if fits else (Level.BYTES, f"the level 'load' {words}")

    def _fits(self, level: Level) -> tuple[bool, str]:
        """Whether memory allows a level, and what it needs in words; of layers, if these fit."""
        available = free_memory()
        needed = self.memory(level, by_layers=self.by_layers)
        there = f"{format_bytes(available)} are available"
        way = " for one layer at a time" if self.by_layers else ""  # or a block of its experts
        words = f"needs {format_bytes(needed)} of memory{way}, {there}"
        if needed > available and not self.by_layers and not self._is_inseparable:
            # By layers it may reach the highest level that there is.
            highest = Level.LOGITS if self.source and not self.missing else Level.LOAD
            streamed = self.memory(highest, by_layers=True)
            if streamed <= available:
                words += f"; {_STREAMED} reaches '{highest}' with {format_bytes(streamed)}"
        return needed <= available, words

    def costs(self, level: Level, tokens: int) -> Costs:
        """Of the checks of a level, and of those before it."""
        return reduce(added, self._work(level, tokens))

    def _work(self, level: Level, tokens: int) -> Iterator[Costs]:
        yield check_costs(self.manifest.nbytes)
        if level is Level.BYTES:
            return
        try:
            exported = self.exported
        except UserError:  # the checks of its bytes say so
            return
        rows, length = token_shape(exported, tokens)
        passes, run = self.passes(exported, level), rows * length
        if self.by_layers:
            yield from (costs.total for costs in costs_in_step(passes, run))
            return
        for one in passes:
            yield run_costs(one.model, run, one.precision.computed).total

    def passes(self, exported: MoEModel, level: Level) -> list[ForwardPass]:
        """What a level runs: the export as it is, last of all; before, what is compared."""
        load = ForwardPass(exported)
        return [*self.sides(exported).passes, load] if level is Level.LOGITS else [load]

    def sides(self, exported: MoEModel) -> Sides:
        """What logits compare.

        Raises:
            ValueError: there is no source.
        """
        if self.source is None:
            raise ValueError("logits are compared with those of a source")
        return Sides(exported, self.source, self.manifest.plan, self.manifest.dequantised)

    def memory(self, level: Level, *, by_layers: bool | None = None) -> int:
        """Bytes of memory that a level takes, with its libraries."""
        by_layers = self.by_layers if by_layers is None else by_layers
        if level is Level.BYTES:
            return _BYTES_MEMORY
        if level is Level.LOGITS and self.source:
            return logits_memory(self.source, self.manifest.plan, by_layers=by_layers)
        if not by_layers:
            return int(self.manifest.nbytes * MEMORY_FACTOR) + MEMORY_EXTRA
        try:
            exported = self.exported
        except UserError:  # the checks of its bytes say so
            return 0
        return layer_memory(exported, item_bytes(exported)).nbytes


def expected_verification(  # noqa: PLR0913  (as `verify_export`)
    path: Path,
    *,
    level: str | None = None,
    source: Path | None = None,
    tokens: int = CHECK_TOKENS,
    directories: Sequence[Path] = (),
    stream_layers: bool = False,
) -> tuple[Costs, int, str]:
    """What `verify_export` would cost, its memory, and the level that it would reach.

    Raises:
        ExportError: it is no export, or the level lacks what it needs.
    """
    original = describe_model(open_checkpoint(source), name=source.name) if source else None
    manifest = with_files(read_manifest(path), directories)
    choice = _Choice(level, stream_layers, path, manifest, original)
    choice.check()
    choice.import_libraries()
    reached = choice.choose()[0]
    return choice.costs(reached, tokens), choice.memory(reached), str(reached)


def verify_export(  # noqa: PLR0913  (options of the command)
    path: Path,
    *,
    level: str | None = None,
    source: Path | None = None,
    tokens: int = CHECK_TOKENS,
    directories: Sequence[Path] = (),
    stream_layers: bool = False,
) -> Generator[Progress, None, VerifyReport]:
    """Verify an exported checkpoint; returns the report.

    A level starts only if all checks before it pass. The default is the highest level that memory
    allows; `logits` needs the source, the checkpoint that was exported. With the source, every
    tensor of it is accounted for, and every byte of the export is compared with it. `tokens` random
    tokens are run, rounded up to whole rows; with `stream_layers` one layer is in memory at a time.
    The files of a repair are looked for in statistics folders, `directories`; without them its
    bytes and logits are not compared.
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
    choice = _Choice(level, stream_layers, path, with_files(manifest, directories), original)
    choice.check()
    choice.import_libraries()
    report = VerifyReport(*choice.choose(), ())
    tally = Tally(choice.costs(report.level, tokens))

    def step(done: Costs) -> Progress:
        for kind, amount in done.items():
            tally.add(kind, amount)
        whole = tally.whole
        read, total = bytes_in(whole.done), bytes_in(whole.total)
        return Progress("verifying", read, total, "bytes", whole=whole)

    yield step({})  # before threads read: the machine may be probed now
    return (yield from with_steps(_verify(choice, report, tokens), step))


def _verify(
    choice: _Choice, report: VerifyReport, tokens: int
) -> Generator[Costs, None, VerifyReport]:
    """Verify up to the level of the report; yields the costs of what it did since it last did."""
    manifest = choice.manifest
    made_by = f"plan {manifest.plan.digest[:8]}, written by version {manifest.tool_version}"
    contents = yield from _counted(
        check_contents(choice.path, manifest, choice.source), manifest.nbytes
    )
    report = replace(report, checks=(Check("manifest", True, made_by), *contents.all))
    if not all(check.ok for check in contents.own):
        reason = "the bytes are not those of the export"
        return replace(report, level=Level.BYTES, reason=reason)
    if not report.ok:
        reason = "the source given does not lead to this export"
        return replace(report, level=Level.BYTES, reason=reason)
    if report.level is Level.BYTES:
        return report
    return (yield from _verify_forward(choice, report, tokens))


def _counted(
    checking: Generator[int, None, ContentChecks], nbytes: int
) -> Generator[Costs, None, ContentChecks]:
    """Costs since the last step, of a task that yields how many of all bytes it has read."""
    before = 0

    def step(done: int) -> Costs:
        nonlocal before
        more, before = done - before, done
        return check_costs(more)

    checked = yield from with_steps(checking, step)
    yield step(nbytes)
    return checked


def _verify_forward(
    choice: _Choice, report: VerifyReport, tokens: int
) -> Generator[Costs, None, VerifyReport]:
    """The load level, and the logits level if the report aims at it."""
    # Imported here, as the dashboard imports this module and must start without torch.
    from analysis.calibration.loading import why_not_loaded
    from pruning.surgery.forward_checks import check_load, check_logits, random_tokens
    from pruning.surgery.running import run_whole
    from pruning.surgery.streamed_run import run_in_step

    exported = choice.exported
    if why := why_not_loaded(exported):
        return _only_bytes(report, why)
    ids = random_tokens(exported, tokens)
    *compared, load = choice.passes(exported, report.level)
    outcomes = []
    try:
        if choice.by_layers:
            *outcomes, loaded = yield from run_in_step([*compared, load], ids)
        else:
            loaded = yield from run_whole(load, ids)
    except UnsupportedModelError as error:  # its layers do not run alone
        if report.reason == _ASKED_FOR or not choice.by_layers:
            raise
        whole = replace(choice, by_layers=False)
        goal, reason = whole.choose()
        why = str(error).removesuffix(".")
        if goal is Level.BYTES:
            return _only_bytes(report, why)
        report = replace(report, level=goal, reason=f"{why}; as a whole: {reason}")
        return (yield from _verify_forward(whole, report, tokens))
    check = check_load(exported, loaded)
    report = replace(report, checks=(*report.checks, check))
    if not check.ok:
        return replace(report, level=Level.LOAD, reason="the export does not load or run")
    if report.level is Level.LOAD:
        return report
    if not choice.by_layers:  # one model at a time
        for one in compared:
            outcomes.append((yield from run_whole(one, ids)))
    check, difference = check_logits(choice.sides(exported), *outcomes)
    return replace(report, checks=(*report.checks, check), max_abs_diff=difference)


def _only_bytes(report: VerifyReport, why: str) -> VerifyReport:
    """The report on a model that cannot be run; refused if that was asked for."""
    if report.reason == _ASKED_FOR:
        raise ExportError(f"The level '{report.level}' is not possible: {why}; use 'bytes'.")
    unknown = f"not checked: whether it loads, and its logits, as {why}"
    return replace(report, level=Level.BYTES, reason=unknown)
