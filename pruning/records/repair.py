"""Records of repairs: of which plan, fitted on which text, with what outcome in each layer.

A repair has two digests. `digest` is its identity: of the plan, the text and the bytes of its
files. Plans, evaluations and exports name it. `request_digest` is of what was asked, and of the
solver; it finds a repair that is there already.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from analysis.files.content import known_sha256
from analysis.files.durable import make_folder, partial_of, sync_folder
from analysis.files.naming import run_name
from analysis.model.moe_model import MoEModel
from analysis.stats.manifest import CorpusRef
from pruning.measures.store import Count, RecordPart, RecordStore
from pruning.plan.plan import PruningPlan, Repair, layer_file
from pruning.plan.plan_file import content_digest
from pruning.records.plan_facts import PlanFacts, RecordOfPlan, plan_facts

REPAIRS = "repairs"  # folder of records and files, in a statistics folder
_EIGHT = 8  # digits of a digest at the end of an id
Share = Annotated[float, Field(ge=0)]


class LayerFit(RecordPart):
    """How the down projections of a layer were refitted."""

    layer: Count
    # What they were fitted to: what the layer's output lacks of the original's, or the routed
    # output, where something changes it on its way to the layer's output, such as a norm.
    target: Literal["layer", "experts"]
    damping: Share | None = None  # chosen share of the mean of the Gram matrices; None: unchanged
    # Damping -> squared error on held-out sequences, as a share of that without a repair.
    held_out: Mapping[str, Share] = {}
    # Squared change of the output by rounding to the checkpoint's dtype, as a share of the same.
    rounding: Share | None = None
    tokens: Count = 0  # that were fitted on, held-out ones among them

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.damping is not None and f"{self.damping:g}" not in self.held_out:
            raise ValueError(f"its damping {self.damping:g} is none of {', '.join(self.held_out)}")
        return self

    @property
    def left(self) -> float | None:
        """Squared error left on held-out sequences, a share of that without; None: unchanged."""
        return None if self.damping is None else self.held_out[f"{self.damping:g}"]


class RepairRecord(RecordOfPlan):
    """A repair of one plan; its files are in a folder of its name beside it.

    Its settings are `dtype`, `seed` and `seq_len`; `plan` is the plan without the repair.
    """

    folder = REPAIRS
    word = "repair"
    command = "repair"
    measured = "layers"

    record_id: str = Field(alias="repair_id")
    request_digest: str = ""  # of what was asked, and of the method
    plan: PlanFacts
    corpora: tuple[CorpusRef, ...]  # that it was fitted on
    layers: tuple[LayerFit, ...] = ()
    files: Mapping[str, str] = {}  # name -> SHA-256 of its bytes

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        numbers = [layer.layer for layer in self.layers]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"it has layers {', '.join(map(str, numbers))}")
        fitted = [layer_file(layer.layer) for layer in self.layers if layer.damping is not None]
        if sorted(self.files) != fitted:
            raise ValueError(f"it has files {', '.join(self.files)} of {', '.join(fitted)}")
        if self.layers and (self.record_id, self.digest) != self._identity:
            raise ValueError(f"its files are of another repair, {self._identity[0]}")
        return self

    @property
    def _identity(self) -> tuple[str, str]:
        """Id and digest of a finished repair."""
        reference = self.reference
        digest = content_digest(self.plan_digest, reference.corpora, reference.tokens, self.files)
        return run_name(self.record_id[: -_EIGHT - 1], digest=digest), digest

    @classmethod
    def new(
        cls,
        model: MoEModel,
        plan: PruningPlan,
        corpora: Sequence[CorpusRef],
        settings: Mapping[str, Any],
        method: Any,
    ) -> Self:
        """A record without results; until it has some, its id and digest are of the request.

        `method` is what decides the weights besides the request, as JSON.
        """
        facts = plan_facts(plan, model)
        words = (facts.criterion or "plan", facts.sparsity.rstrip("%"), "repair")
        begun = cls.begun_with(
            model,
            plan.digest,
            words,
            {
                "corpora": [(corpus.name, corpus.digest) for corpus in corpora],
                "settings": dict(settings),
                "method": method,
            },
            plan=facts,
            corpora=tuple(corpora),
            settings=settings,
        )
        return begun.model_copy(update={"request_digest": begun.digest})

    @property
    def reference(self) -> Repair:
        """As a plan names it."""
        names = tuple(corpus.name for corpus in self.corpora)
        tokens = sum(corpus.num_tokens for corpus in self.corpora)
        return Repair(self.record_id, self.digest, names, tokens)

    @property
    def outcome(self) -> str:
        """What it was fitted on and what is left to lack, with the warning that follows."""
        shares = [layer.left for layer in self.layers if layer.left is not None]
        error = f"{len(self.layers)} layers, none of which gained anything"
        if shares:
            error = (
                f"{len(shares)} of {len(self.layers)} layers refitted, {min(shares):.0%} to "
                f"{max(shares):.0%} of the squared error left on held-out sequences"
            )
        return f"{self.reference.words}; {error}; on other text it may help less, or harm"

    def with_layers(
        self, layers: Sequence[LayerFit], sha256: Callable[[int], str], made: Mapping[str, Any]
    ) -> Self:
        """The record of a finished repair; `sha256` is that of a layer's file."""
        changed = [layer.layer for layer in layers if layer.damping is not None]
        files = {layer_file(layer): sha256(layer) for layer in changed}
        return self.finished(made, layers=tuple(layers)).with_files(files)

    def with_files(self, files: Mapping[str, str]) -> Self:
        """The record with these files, by their SHA-256, and the identity that follows."""
        record = self.model_copy(update={"files": files})
        record_id, digest = record._identity
        return record.model_copy(update={"record_id": record_id, "digest": digest})

    def wrong_file(self, present: Mapping[str, Path]) -> str:
        """What is wrong with these files, as "X was changed"; empty if nothing is."""
        for name in sorted(self.files.keys() | present.keys()):
            if name not in present:
                return f"{name} is not there"
            if self.files.get(name) != known_sha256(present[name]):
                return f"{name} was changed"
        return ""


class RepairStore(RecordStore[RepairRecord]):
    """Repairs in one or more statistics folders; new ones go to the first."""

    kind = RepairRecord

    def find(self, new: RepairRecord) -> RepairRecord:
        """The latest repair of the same request whose files are whole, or `new` itself."""
        records = sorted(self.records(new.model.identity), key=lambda record: record.created_at)
        same = (
            record for record in reversed(records) if record.request_digest == new.request_digest
        )
        return next(filter(self.is_whole, same), new)

    def unfinished(self, record: RepairRecord) -> Path:
        """The folder of a repair's files while they are made; its name is of the request."""
        return partial_of(self.folder / record.record_id)

    def finish(self, record: RepairRecord, made: Path) -> None:
        """Move the files of a finished repair from where they were made, and write its record."""
        if record.files:
            folder = self.path(record).with_suffix("")
            shutil.rmtree(folder, ignore_errors=True)  # the same repair, with damaged files
            make_folder(folder.parent)
            made.rename(folder)
            sync_folder(folder.parent)
        self.save(record)

    def is_whole(self, record: RepairRecord) -> bool:
        """Whether a stored record's files are there as they were written."""
        folders = self.folders(record.model.identity)
        stored = (folder / f"{record.record_id}.json" for folder in folders)
        path = next((path for path in stored if path.is_file()), None)
        if path is None:
            return False
        return not record.wrong_file(replace(record.reference, folder=path.with_suffix("")).files)
