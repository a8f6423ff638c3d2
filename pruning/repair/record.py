"""Records of repairs: of which plan, fitted on which text, with what outcome in each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from analysis.content import file_sha256, known_sha256
from analysis.model import MoEModel
from analysis.stats.tables import CorpusRef
from pruning.evaluate.record import PlanFacts, RecordOfPlan, plan_facts
from pruning.evaluate.store import Count, RecordPart, RecordStore
from pruning.plan import PruningPlan
from pruning.repair.reference import REPAIRS, Repair, layer_file

METHOD = 1  # raised when the same request would give other weights
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
    plan: PlanFacts
    corpora: tuple[CorpusRef, ...]  # that it was fitted on
    layers: tuple[LayerFit, ...] = ()
    files: Mapping[str, str] = {}  # name -> SHA-256 of its bytes

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        numbers = [each.layer for each in self.layers]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"it has layers {', '.join(map(str, numbers))}")
        fitted = [layer_file(each.layer) for each in self.layers if each.damping is not None]
        if sorted(self.files) != fitted:
            raise ValueError(f"it has files {', '.join(self.files)} of {', '.join(fitted)}")
        return self

    @classmethod
    def new(
        cls,
        model: MoEModel,
        plan: PruningPlan,
        corpora: Sequence[CorpusRef],
        settings: Mapping[str, Any],
    ) -> Self:
        """A record without results."""
        facts = plan_facts(plan, model)
        words = (facts.criterion or "plan", facts.sparsity.rstrip("%"), "repair")
        return cls.begun_with(
            model,
            plan.digest,
            words,
            {
                "corpora": [(each.name, each.digest) for each in corpora],
                "settings": dict(settings),
                "method": METHOD,
            },
            plan=facts,
            corpora=tuple(corpora),
            settings=settings,
        )

    @property
    def reference(self) -> Repair:
        """As a plan names it."""
        names = tuple(each.name for each in self.corpora)
        tokens = sum(each.num_tokens for each in self.corpora)
        return Repair(self.record_id, self.digest, names, tokens)

    @property
    def outcome(self) -> str:
        """What it was fitted on and what is left to lack, with the warning that follows."""
        shares = [each.left for each in self.layers if each.left is not None]
        error = f"{len(self.layers)} layers, none of which gained anything"
        if shares:
            error = (
                f"{len(shares)} of {len(self.layers)} layers refitted, {min(shares):.0%} to "
                f"{max(shares):.0%} of the squared error left on held-out sequences"
            )
        return f"{self.reference.words}; {error}; on other text it may help less, or harm"

    def with_layers(
        self, layers: Sequence[LayerFit], folder: Path, made: Mapping[str, Any]
    ) -> Self:
        """The record of a finished repair, whose files are in `folder`."""
        paths = [folder / layer_file(each.layer) for each in layers if each.damping is not None]
        files = {path.name: file_sha256(path) for path in paths}
        return self.finished(made, layers=tuple(layers), files=files)


class RepairStore(RecordStore[RepairRecord]):
    """Repairs in one or more statistics folders; new ones go to the first."""

    kind = RepairRecord

    def files(self, record: RepairRecord) -> Path:
        """The folder of a new repair's files."""
        return self.path(record).with_suffix("")

    def is_whole(self, record: RepairRecord) -> bool:
        """Whether a stored record's files are there as they were written."""
        stored = (folder / f"{record.record_id}.json" for folder in self._folders)
        folder = next(path for path in stored if path.is_file()).with_suffix("")
        return all(
            (path := folder / name).is_file() and known_sha256(path) == digest
            for name, digest in record.files.items()
        )
