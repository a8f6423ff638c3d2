"""Repairs of the plan on screen: those that are known, and which one is chosen."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from analysis.corpora.spec import bare_name, corpus_name, corpus_weight_text
from analysis.errors import PlanError
from app.loaded import CurrentPlan, Loaded
from app.session.data import corpus_files, records_of, shown_model, shown_stats_dir
from app.session.job_queue import own_model
from pruning.plan.plan import PruningPlan
from pruning.records.repair import RepairRecord, RepairStore
from pruning.records.repair_files import if_here
from pruning.requests.repair import RepairRequest, ranking_corpora
from pruning.spec.base import validated
from pruning.spec.options import DEFAULT_SEED

REPAIR: Final = "repair"  # key of the choice, and its parameter in the URL
AS_PRUNED: Final = "as pruned"


def known_repairs(loaded: Loaded, current_plan: CurrentPlan) -> dict[str, RepairRecord]:
    """Words -> repair of this plan, the newest first; equal words get the record's id.

    Those whose files are not what was made are left out; see `changed_repairs`.
    """
    store = loaded.study.opened(RepairStore)
    records = [record for record in _of_plan(loaded, current_plan) if store.is_whole(record)]
    words: dict[str, RepairRecord] = {}
    for record in sorted(records, key=lambda repair: repair.created_at, reverse=True):
        names = [corpus.name for corpus in record.corpora]
        where = ", ".join(names) if len(names) < 3 else f"{len(names)} corpora"
        name = f"repaired on {where}, {record.reference.tokens:,} tokens"
        words[name if name not in words else f"{name} ({record.digest[:8]})"] = record
    return words


def changed_repairs(loaded: Loaded, current_plan: CurrentPlan) -> list[str]:
    """What is wrong with each repair of this plan that is not what was made."""
    problems = []
    for record in _of_plan(loaded, current_plan):
        repaired = replace(current_plan.plan, repair=record.reference)
        try:
            if_here(repaired, loaded.study.store.directories)
        except PlanError as error:
            problems.append(str(error))
    return problems


def _of_plan(loaded: Loaded, current_plan: CurrentPlan) -> list[RepairRecord]:
    digest = current_plan.plan.in_own_bits.unrepaired.digest
    return [record for record in records_of(loaded, RepairStore) if record.plan_digest == digest]


def with_repair(loaded: Loaded, current_plan: CurrentPlan, record: RepairRecord) -> CurrentPlan:
    """The plan with this repair, and the request that makes it, as command lines show it."""
    plan, settings = current_plan.plan, record.settings
    is_even = len({corpus.num_tokens for corpus in record.corpora}) == 1
    files = _files([corpus.name for corpus in record.corpora])
    corpora = [
        corpus_weight_text(
            files.get(corpus.name) or corpus.path or corpus.name,
            1 if is_even else corpus.num_tokens,
        )
        for corpus in record.corpora
    ]
    fields = {
        "model": shown_model(loaded.model),
        "plan": plan.in_own_bits.to_dict(),
        "corpora": tuple(corpora),
        "tokens": record.reference.tokens,
        "dtype": settings["dtype"],
        "seq_len": settings["seq_len"],
        "seed": None if settings["seed"] == DEFAULT_SEED else settings["seed"],
        "stats_dir": shown_stats_dir(),
    }
    request = validated(RepairRequest, fields)
    return replace(current_plan, plan=replace(plan, repair=record.reference), repaired_by=request)


def new_repair_request(
    loaded: Loaded,
    current_plan: CurrentPlan,
    corpora: Sequence[str],
    tokens: int,
    skip_bad_rows: int = 0,
) -> RepairRequest:
    """The request that repairs a plan; without `corpora` on those that ranked it."""
    plan = current_plan.plan
    fields = {
        **own_model(loaded),
        "plan": plan.in_own_bits.to_dict(),
        "corpora": tuple(corpora) or _files_that_ranked(plan),
        "tokens": tokens,
        "skip_bad_rows": skip_bad_rows,
    }
    return validated(RepairRequest, fields)


def _files_that_ranked(plan: PruningPlan) -> tuple[str, ...]:
    """The corpora that ranked a plan, by their paths; empty if none is a file of the server."""
    parts = ranking_corpora(plan)
    files = _files([part.corpus for part in parts])
    texts = [corpus_weight_text(files.get(n.corpus, n.corpus), n.weight) for n in parts]
    return tuple(texts) if files else ()


def _files(names: Sequence[str]) -> dict[str, str]:
    """Name of a corpus -> its path, of those that are files of the server."""
    bare = {bare_name(name) for name in names}
    # Of others the content need not be read.
    paths = (path for path in corpus_files() if bare_name(path) in bare)
    return {name: path for path in paths if (name := corpus_name(path)) in names}
