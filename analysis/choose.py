"""Which statistics a criterion ranks by: the runs of this model, by corpus or by id."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.blend import Part, blend
from analysis.criteria import Criterion
from analysis.errors import StatsError, unknown_name
from analysis.model import MoEModel
from analysis.ranking import Stats
from analysis.stats import NoStats
from analysis.store import Run, StatsStore, load_expert_stats, load_weight_stats


@dataclass(frozen=True, slots=True)
class CorpusWeight:
    """A corpus and its weight in a blend."""

    corpus: str
    weight: float = 1.0


def parse_corpus_weight(text: str) -> CorpusWeight:
    """`NAME` or `NAME:WEIGHT`.

    Raises:
        StatsError: a weight that is no positive number.
    """
    name, colon, weight = text.rpartition(":")
    if not colon:
        return CorpusWeight(text)
    try:
        value = float(weight)
    except ValueError as error:
        raise StatsError(
            f"{weight!r} in {text!r} is no weight; write CORPUS:2 or CORPUS."
        ) from error
    if not value > 0:
        raise StatsError(f"The weight in {text!r} must be greater than 0.")
    return CorpusWeight(name, value)


def _check_model(run: Run, model: MoEModel) -> None:
    if run.manifest.model.identity != model.identity:
        raise StatsError(
            f"The run {run.manifest.run_id} holds statistics of another model "
            f"({run.manifest.model.name}, identity {run.manifest.model.identity[:8]}), not of "
            f"{model.name} ({model.identity[:8]})."
        )


def weight_run(store: StatsStore, model: MoEModel) -> Run:
    """The model's weight statistics.

    Raises:
        StatsError: there are none.
    """
    runs = store.of_model(model.identity, "weights")
    if not runs:
        raise StatsError(
            f"There are no weight statistics of {model.name}; run `moeprune weights MODEL`."
        )
    return runs[0]


def newest_by_corpus(runs: Sequence[Run]) -> dict[str, Run]:
    """One run per corpus: the one with most tokens, then the newest."""
    best: dict[str, Run] = {}
    for run in sorted(
        runs, key=lambda run: (run.manifest.num_tokens, str(run.manifest.made.get("created_at")))
    ):
        best[run.manifest.corpus] = run
    return {corpus: best[corpus] for corpus in sorted(best)}


def routed_runs(
    store: StatsStore, model: MoEModel, corpora: Sequence[CorpusWeight], run_ids: Sequence[str]
) -> list[Part]:
    """The calibration runs that were asked for: by id, by corpus, or the only one there is.

    Raises:
        StatsError: none fits, several fit and none was named, or one is of another model.
    """
    if run_ids:
        named = [store.get(run_id) for run_id in run_ids]
        for run in named:
            _check_model(run, model)
        return [Part(run) for run in named]
    by_corpus = newest_by_corpus(store.of_model(model.identity, "routed"))
    if not by_corpus:
        raise StatsError(
            f"There are no calibration statistics of {model.name} in "
            f"{', '.join(str(path) for path in store.directories)}; run `moeprune calibrate MODEL "
            "--corpus CORPUS`."
        )
    if not corpora:
        if len(by_corpus) == 1:
            return [Part(next(iter(by_corpus.values())))]
        raise StatsError(
            f"{model.name} was calibrated on {', '.join(by_corpus)}; choose with --corpus."
        )
    for wanted in corpora:
        if wanted.corpus not in by_corpus:
            raise StatsError(
                unknown_name(f"calibrated corpus of {model.name}", wanted.corpus, by_corpus)
            )
    return [Part(by_corpus[wanted.corpus], wanted.weight) for wanted in corpora]


@dataclass(frozen=True, eq=False)
class Choice:
    """Statistics to rank by, and the runs that they come from."""

    stats: Stats
    runs: tuple[Run, ...]
    corpora: tuple[str, ...]


def choose_stats(
    criterion: Criterion,
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[CorpusWeight] = (),
    run_ids: Sequence[str] = (),
) -> Choice:
    """The statistics that `criterion` needs.

    Raises:
        StatsError: see `routed_runs` and `weight_run`.
    """
    if criterion.source == "routed":
        parts = routed_runs(store, model, corpora, run_ids)
        names = tuple(
            part.run.manifest.corpus + (f":{part.weight:g}" if part.weight != 1 else "")
            for part in parts
        )
        return Choice(blend(parts), tuple(part.run for part in parts), names)
    if criterion.source == "none":
        return Choice(NoStats(model.layers), (), ())
    run = weight_run(store, model)
    return Choice(load_weight_stats(run), (run,), ())


def stats_by_corpus(runs: Sequence[Run]) -> dict[str, Stats]:
    """Loaded statistics of the best run of each corpus."""
    return {corpus: load_expert_stats(run) for corpus, run in newest_by_corpus(runs).items()}
