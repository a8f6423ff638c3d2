"""The request to repair a plan: which corpora the kept experts are refitted on, and how it runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from analysis.corpora.spec import CorpusWeight, is_at_hand, parse_corpus_weight
from analysis.errors import PlanError
from pruning.option import Option
from pruning.plan.plan import PruningPlan
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import ActionOptions, ModelRequest
from pruning.spec import options
from pruning.spec.base import validated
from pruning.spec.spec import PlanSpec

DEFAULT_REPAIR_TOKENS = 65_536


class RepairOptions(ActionOptions):
    """What a repair is fitted on."""

    corpora: Annotated[
        tuple[options.CalibratedOn, ...],
        Option(
            "Corpus to fit on, with a weight if it is not 1; repeatable: a blend. Default: the "
            "corpora that ranked the plan, else all calibrated ones.",
            ("--corpus",),
        ),
    ] = ()
    tokens: Annotated[
        options.Whole,
        Field(ge=4, le=10**10),
        Option("Tokens to fit on, of all corpora together."),
    ] = DEFAULT_REPAIR_TOKENS
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None


class RepairRequest(RepairOptions, ModelRequest):
    """A repair of a plan; layers are loaded one at a time."""

    asked_by = "repair"
    writes = "repaired.json"
    plan: options.Plan
    template_args: options.TemplateArgs = Field(default_factory=dict)
    skip_bad_rows: options.SkipBadRows = 0
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    batch_size: options.BatchSize = 8
    attention: options.Attention = "auto"
    hidden_states_dir: Annotated[
        Path | None, Option("Keep hidden states here; default: in memory if small.", takes="FOLDER")
    ] = None
    experts_at_once: Annotated[
        options.ExpertsAtOnce | None,
        Option("Experts of a layer to load at once; default: all, or what fits.", takes="EXPERTS"),
    ] = None
    trust_remote_code: options.Trust = False
    allow_test_set: options.AllowTestSet = False
    stats_dir: options.StatsDir | None = None

    def readings(self, plan: PruningPlan, calibrated: Mapping[str, str]) -> list[CalibrateRequest]:
        """How each corpus is read, as by calibrations: tokens are shared by the weights.

        `calibrated` are corpora with the file that each was read from, if it was one. They say
        where the corpora are that ranked the plan, and serve a plan that none ranked.
        """
        parts = [parse_corpus_weight(text) for text in self.corpora]
        if not parts:
            ranked = ranking_corpora(plan)
            known = ranked or [CorpusWeight(name) for name in calibrated]
            parts = [found_here(part, calibrated.get(part.corpus, "")) for part in known]
            if not ranked:
                parts = [part for part in parts if is_at_hand(part.corpus)]
        if not parts:
            raise PlanError(
                "The plan was ranked without text, and nothing is calibrated, so nothing says what "
                "to repair it on; name one or several --corpus."
            )
        if not self.corpora and (files := [p.corpus for p in parts if not is_at_hand(p.corpus)]):
            file = calibrated.get(files[0]) or files[0]
            raise PlanError(
                f"The plan was ranked by {files[0]}, and no file {file} with its text is here; "
                "name what to repair it on: `moeprune repair --corpus FILE`."
            )
        total = sum(part.weight for part in parts)
        shared = self.model_dump(
            include=type(self).model_fields.keys()
            & CalibrateRequest.model_fields.keys() - {"tokens", "corpora"},
            exclude_none=True,
        )
        return [
            validated(
                CalibrateRequest,
                {
                    **shared,
                    "corpus": part.corpus,
                    "tokens": max(2, round(self.tokens * part.weight / total)),
                    "stream_layers": True,
                },
            )
            for part in parts
        ]


def found_here(part: CorpusWeight, file: str) -> CorpusWeight:
    """The corpus as it can be read here: by its name, else in the file that it was read from.

    The digits in its name tell whether that file still holds it.
    """
    _, has_content, content = part.corpus.rpartition("@")
    place = f"{file}@{content}"
    if is_at_hand(part.corpus) or not (file and has_content and is_at_hand(place)):
        return part
    return replace(part, corpus=place)


def ranking_corpora(plan: PruningPlan) -> list[CorpusWeight]:
    """The corpora that ranked a plan, with their weights."""
    provenance = plan.provenance
    if provenance.spec:
        weights = PlanSpec.recorded(provenance.spec).corpus_weights
        if weights:
            return list(weights)
    return [CorpusWeight(name) for name in provenance.corpora]
