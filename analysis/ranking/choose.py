"""Choose the statistics that a criterion ranks by: runs of a model, by corpus or by id."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from analysis.cache_keys import IdentityKey, most_results
from analysis.corpora.spec import (
    CorpusWeight,
    bare_name,
    content_of,
    corpus_weight_text,
    is_at_hand,
    name_among,
)
from analysis.criteria import Criterion
from analysis.errors import StatsError, unknown_name
from analysis.model.moe_model import MoEModel
from analysis.ranking.experts import Stats
from analysis.stats.blend import blend
from analysis.stats.columns import COUNT_COLUMNS, groups_for
from analysis.stats.manifest import COUNTS_ALONE, Part, Run, RunManifest
from analysis.stats.reading import load_weight_stats
from analysis.stats.store import StatsStore
from analysis.stats.tables import NoStats

Chosen = TypeVar("Chosen")


def weight_run(store: StatsStore, model: MoEModel) -> Run:
    """The model's weight statistics."""
    runs = store.of_model(model.identity, "weights")
    if not runs:
        raise StatsError(
            f"There are no weight statistics of {model.name}; run `moeprune weights MODEL`."
        )
    return runs[0]


def reads_counts_alone(criterion: Criterion | None) -> bool:
    """Whether counts of tokens, all that traffic has, are enough for a criterion."""
    return criterion is not None and set(criterion.columns("applied")) <= set(COUNT_COLUMNS)


def readable_runs(store: StatsStore, model: MoEModel, criterion: Criterion | None) -> list[Run]:
    """Calibration runs; for a criterion that reads counts alone, also those of traffic."""
    more = (COUNTS_ALONE,) if reads_counts_alone(criterion) else ()
    return store.of_model(model.identity, "routed", *more)


def _check_reads(manifest: RunManifest, criterion: Criterion | None) -> None:
    """Refuse traffic for what needs more than counts."""
    if manifest.kind == COUNTS_ALONE and not reads_counts_alone(criterion):
        what = f"; {criterion.label} reads more" if criterion else ""
        raise StatsError(
            f"{manifest.corpus} is traffic, of which a run has counts of tokens alone{what}. Rank "
            "by frequency (--criterion frequency), or calibrate on text like it."
        )


def _groups_read(criterion: Criterion | None) -> frozenset[str]:
    """The statistic groups that the criterion reads of a run."""
    return frozenset(groups_for(criterion.columns("applied")) if criterion else ())


def _named_runs(
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[object],
    run_ids: Sequence[str],
    criterion: Criterion | None,
) -> list[Run]:
    """The runs of these ids, checked; empty if no id is given."""
    if run_ids and corpora:
        raise StatsError(
            "A run and a corpus were both named; use --run or --calibrated-on, not both."
        )
    runs = [store.get(run_id) for run_id in run_ids]
    for manifest in (run.manifest for run in runs):
        if manifest.kind == "weights":
            raise StatsError(
                f"The run {manifest.run_id} has weight statistics, which need no --run; name a "
                "calibration run."
            )
        if manifest.model.identity != model.identity:
            raise StatsError(
                f"The run {manifest.run_id} has statistics of another model "
                f"({manifest.model.name}, identity {manifest.model.identity[:8]}), not of "
                f"{model.name} ({model.identity[:8]})."
            )
        _check_reads(manifest, criterion)
    return runs


def _pick(
    by_corpus: Mapping[str, Run], corpora: Sequence[str], absent: str, several: str
) -> list[str]:
    """Names of the corpora asked for, or of the only one; the last arguments are for messages."""
    if not by_corpus:
        raise StatsError(absent)
    if not corpora and len(by_corpus) > 1:
        raise StatsError(f"{several} {', '.join(by_corpus)}; choose with --calibrated-on.")
    return [name_among(by_corpus, corpus) for corpus in corpora] or list(by_corpus)


def _check_known(
    by_corpus: Mapping[str, Run], corpora: Sequence[str], kind: str, groups: str = ""
) -> None:
    """Refuse corpora without a run; `groups` are the options that make a run with what is read."""
    for corpus in corpora:
        if (name := name_among(by_corpus, corpus)) in by_corpus:
            continue
        namesakes = [
            candidate for candidate in by_corpus if bare_name(candidate) == bare_name(name)
        ]
        files = " and ".join(
            f"{namesake} (read from {path})"
            if (path := path_hint(by_corpus[namesake]))
            else namesake
            for namesake in namesakes
        )
        if "," in name and set(parts := name.split(",")) <= by_corpus.keys():
            words = " ".join(f"--calibrated-on {part}" for part in parts)
            problem = f"{name!r} is several corpora; name each by its own option: {words}."
        elif not namesakes:
            problem = unknown_name(kind, name, by_corpus)
        elif content_of(name):
            problem = (
                f"The content of {corpus} is {name}, which is no {kind}. It has changed, or is "
                f"another file than {files}; choose by that name."
            )
        elif name != corpus:
            problem = (
                f"The file of {corpus} does not exist. Of this name there is {files}; choose it so."
            )
        else:
            problem = (
                f"{name} is the name of {len(namesakes)} corpora: {files}; choose by the longer "
                "name."
            )
        if is_at_hand(corpus):
            words = f"{shlex.quote(corpus)}{groups}"
            problem += f" Or run `moeprune calibrate MODEL --corpus {words}` first."
        raise StatsError(problem)


def path_hint(run: Run) -> str:
    """Where the corpus of a run was when it was read; empty if it has no file, or several have."""
    paths = [corpus.path for corpus in run.manifest.corpora]
    return paths[0] if len(paths) == 1 else ""


def sample_runs(
    store: StatsStore, model: MoEModel, corpora: Sequence[str], run_ids: Sequence[str]
) -> list[Run]:
    """Calibration runs with statistics of samples: by id, by corpus, or the only one."""
    if runs_by_id := _named_runs(store, model, corpora, run_ids, None):
        return runs_by_id
    runs = store.of_model(model.identity, "routed")
    by_corpus = run_by_corpus([run for run in runs if "dense" in run.manifest.groups])
    names = _pick(
        by_corpus,
        corpora,
        f"There are no statistics of samples of {model.name}; run `moeprune calibrate MODEL "
        "--corpus CORPUS --group dense`.",
        f"{model.name} has statistics of samples of",
    )
    _check_known(by_corpus, corpora, f"corpus with samples of {model.name}", " --group dense")
    return [by_corpus[name] for name in names]


def run_by_corpus(runs: Iterable[Run], criterion: Criterion | None = None) -> dict[str, Run]:
    """The calibration run of each corpus: one that ships, else the largest, else the newest.

    What is calibrated here never changes what the name of a corpus that ships stands for; another
    run is chosen by its id. Of equally large ones, the dtype in which more corpora were calibrated
    goes before a newer run: corpora that can be blended still can after one of them was calibrated
    again. Runs that have what `criterion` reads go before all that lack it. Merged runs are chosen
    by id only: next to their parts they would count the same tokens twice.
    """
    single = [run for run in runs if len(run.manifest.corpora) == 1]
    in_dtype = Counter(dtype for _, dtype in {(run.manifest.corpus, _dtype(run)) for run in single})
    needed = _groups_read(criterion)
    single.sort(
        key=lambda run: (
            needed.issubset(run.manifest.groups),
            run.is_shipped,
            run.manifest.num_tokens,
            in_dtype[_dtype(run)],
            str(run.manifest.made.get("created_at")),
        )
    )
    last = {run.manifest.corpus: run for run in single}
    return {corpus: last[corpus] for corpus in sorted(last)}


def _dtype(run: Run) -> str:
    return str(run.manifest.settings.get("dtype"))


def notes_on_others(
    chosen: Iterable[Run], runs: Sequence[Run], criterion: Criterion | None = None
) -> tuple[str, ...]:
    """One line per chosen run whose corpus has other runs with other settings."""
    notes = []
    for run in chosen:
        corpora = run.manifest.corpora
        of_corpus = [
            other
            for other in runs
            if [corpus.name for corpus in other.manifest.corpora]
            == [corpus.name for corpus in corpora]
        ]
        if len(of_corpus) > 1:
            notes.append(
                f"{run.manifest.corpus} has {len(of_corpus)} runs; using {run.manifest.run_id}, "
                f"{_why(run, of_corpus, criterion)}; choose another with `moeprune plan --run ID`"
            )
    return tuple(notes)


def _why(run: Run, of_corpus: Sequence[Run], criterion: Criterion | None) -> str:
    """Why `run_by_corpus` takes this run of a corpus, in words."""
    if run.is_shipped:
        return "which ships"
    needed = _groups_read(criterion)
    readable = [other for other in of_corpus if needed.issubset(other.manifest.groups)]
    largest = [other for other in readable if other.manifest.num_tokens == run.manifest.num_tokens]
    reason = "the largest"
    if len(largest) > 1:
        reason = "the newest of the largest"
        if len({_dtype(other) for other in largest}) > 1:
            reason += f" in {_dtype(run)}"
    if criterion and len(readable) < len(of_corpus):
        reason += f" of those with what {criterion.label} reads"
    return reason


def _resolved(corpus: CorpusWeight, *tables: Mapping[str, Run]) -> CorpusWeight:
    """A corpus by its full name in the first of the tables that has it; else as it is."""
    for known in tables:
        named = corpus.among(known)
        if (name := name_among(known, named.corpus)) in known:
            return replace(named, corpus=name)
    return corpus


def routed_runs(
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[CorpusWeight],
    run_ids: Sequence[str],
    criterion: Criterion | None = None,
) -> list[Part]:
    """The calibration runs asked for: by id, by corpus, or the only one."""
    if runs_by_id := _named_runs(store, model, corpora, run_ids, criterion):
        return [Part(run) for run in runs_by_id]
    calibrations = run_by_corpus(store.of_model(model.identity, "routed"), criterion)
    traffic = run_by_corpus(store.of_model(model.identity, COUNTS_ALONE)) if corpora else {}
    corpora = [_resolved(corpus, calibrations, traffic) for corpus in corpora]
    names = [corpus.corpus for corpus in corpora]
    for name in (traffic.keys() - calibrations.keys()) & set(names):
        _check_reads(traffic[name].manifest, criterion)
    by_corpus = run_by_corpus(readable_runs(store, model, criterion), criterion) | calibrations
    chosen = _pick(
        by_corpus,
        names,
        f"There are no calibration statistics of {model.name} in "
        f"{', '.join(str(path) for path in store.directories)}; run `moeprune calibrate MODEL "
        "--corpus CORPUS`, or name a merged run with --run.",
        f"{model.name} was calibrated on",
    )
    _check_known(by_corpus, names, f"calibrated corpus of {model.name}")
    weights = [corpus.weight for corpus in corpora] or [1.0]
    return [Part(by_corpus[name], weight) for name, weight in zip(chosen, weights, strict=True)]


@dataclass(frozen=True, eq=False)
class Choice(IdentityKey, Generic[Chosen]):
    """Statistics to rank by, and where they come from."""

    stats: Chosen
    runs: tuple[Run, ...]
    corpora: tuple[str, ...]  # the calibration corpora, with their weights
    notes: tuple[str, ...] = ()  # remarks on the choice for the user, one line each


def routed_choice(parts: Sequence[Part]) -> Choice[Stats]:
    """The statistics of calibration runs, blended."""
    return Choice(blend(parts), tuple(part.run for part in parts), corpus_names(parts))


def corpus_names(parts: Sequence[Part]) -> tuple[str, ...]:
    """The corpora of these runs as `--calibrated-on` takes them, with weights other than 1."""
    return tuple(corpus_weight_text(part.run.manifest.corpus, part.weight) for part in parts)


@most_results(16)
def choose_stats(
    criterion: Criterion,
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[CorpusWeight] = (),
    run_ids: Sequence[str] = (),
) -> Choice[Stats]:
    """The statistics that `criterion` needs."""
    if criterion.source == "routed":
        choice = routed_choice(routed_runs(store, model, corpora, run_ids, criterion))
        if run_ids:
            return choice
        runs = readable_runs(store, model, criterion)
        return replace(choice, notes=notes_on_others(choice.runs, runs, criterion))
    if corpora or run_ids:
        raise StatsError(
            f"{criterion.label} reads no calibration corpus; leave --calibrated-on and --run out."
        )
    if criterion.source == "none":
        return Choice(NoStats(model.layers), (), ())
    run = weight_run(store, model)
    return Choice(load_weight_stats(run), (run,), ())
