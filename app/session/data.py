"""What the pages read: models, runs and statistics, cached; no weights, no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from analysis.checkpoint import CONFIG_NAME, open_checkpoint
from analysis.criteria import Criterion
from analysis.errors import StatsError, UserError
from analysis.model import DEMO_CHECKPOINT, DEMO_MODEL, MoEModel, describe_model
from analysis.stats.blend import Mixture
from analysis.stats.choose import newest_by_corpus
from analysis.stats.places import default_stats_dir
from analysis.stats.samples import SampleStats
from analysis.stats.shards import TOKEN_PARTS, stats_at
from analysis.stats.store import (
    Run,
    load_expert_stats,
    load_sample_stats,
    load_weight_stats,
    read_run,
)
from analysis.stats.tables import ExpertStats, WeightStats
from app.settings import Settings, shown_path
from pruning.plan import PruningPlan, model_ref
from pruning.schedules import uniform
from pruning.sizes import SizeReport, size_report

MAX_LAYERS, MAX_EXPERTS = 256, 1024
_TEXTS = ("*.txt", "*.jsonl", "*.parquet")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that the dashboard offers: its name there, and where it lies."""

    name: str
    path: Path


@st.cache_resource
def settings() -> Settings:
    """Folders of this server."""
    return Settings.from_environment()


def shown_checkpoint(path: Path) -> str:
    """The checkpoint at `path` as MODEL of a command line."""
    return DEMO_MODEL if path == DEMO_CHECKPOINT.resolve() else str(shown_path(path))


def shown_model(model: MoEModel) -> str:
    """MODEL of a command line."""
    return shown_checkpoint(model.checkpoint.path)


def shown_stats_dir() -> Path | None:
    """What --stats-dir would be; None where the default serves."""
    stats_dir = settings().stats_dir
    return None if stats_dir == default_stats_dir() else shown_path(stats_dir)


def model_choices() -> list[ModelChoice]:
    """The demo, then the checkpoints directly below the models folder, by name."""
    found = [ModelChoice(DEMO_MODEL, DEMO_CHECKPOINT)] if DEMO_CHECKPOINT.is_dir() else []
    root = settings().models_root
    if root is not None and root.is_dir():
        found += [
            ModelChoice(path.name, path)
            for path in sorted(root.iterdir())
            if (path / CONFIG_NAME).is_file() and not path.is_symlink()
        ]
    return found


def text_files() -> list[str]:
    """The texts directly below the models folder, by name; no links, which may lead anywhere."""
    root = settings().models_root
    if root is None:
        return []
    found = (path for glob in _TEXTS for path in root.glob(glob))
    return sorted(str(path) for path in found if not path.is_symlink())


def load_model(choice: ModelChoice) -> MoEModel:
    """The index of a model's checkpoint.

    Raises:
        UserError: the checkpoint cannot be used, or is larger than the pages can show.
    """
    newest = max(path.stat().st_mtime_ns for path in choice.path.iterdir())
    return _load_model(choice.name, str(choice.path), newest)


@st.cache_resource(max_entries=8)
def _load_model(name: str, path: str, newest: int) -> MoEModel:
    del newest  # part of the key only
    model = describe_model(open_checkpoint(Path(path)), name=name)
    experts = max(layer.num_experts for layer in model.layers)
    if len(model.layers) > MAX_LAYERS or experts > MAX_EXPERTS:
        raise UserError(
            f"{name} has {len(model.layers)} layers of up to {experts} experts; the pages show at "
            f"most {MAX_LAYERS} x {MAX_EXPERTS}."
        )
    return model


def all_runs() -> tuple[list[Run], list[str]]:
    """Every finished run, and what is wrong with those that cannot be read."""
    problems: list[str] = []

    def note(error: StatsError) -> None:
        problems.append(str(error))

    return settings().store.runs(note), problems


def routed_runs(model: MoEModel, criterion: Criterion | None = None) -> dict[str, Run]:
    """The calibration run of each corpus that commands would use, see `newest_by_corpus`."""
    runs, _ = all_runs()
    mine = [run for run in runs if run.manifest.model.identity == model.identity]
    return newest_by_corpus([run for run in mine if run.manifest.kind == "routed"], criterion)


def weight_run(model: MoEModel) -> Run | None:
    """The model's weight statistics, if there are any."""
    found = settings().store.of_model(model.identity, "weights")
    return found[0] if found else None


# Where a run lies and what it is: what tables made of it are cached by.
RunKey = tuple[str, str]


def run_key(run: Run) -> RunKey:
    """Path of a run, and its digest with its groups, of which it may gain some."""
    return str(run.path), " ".join((run.manifest.digest, *run.manifest.groups))


def expert_stats(run: Run) -> ExpertStats:
    """Statistics of a calibration run."""
    return _expert_stats(*run_key(run))


def stats_of_key(key: RunKey) -> ExpertStats:
    """Statistics of the calibration run of this key."""
    return _expert_stats(*key)


@st.cache_resource(max_entries=32)
def _expert_stats(path: str, digest: str) -> ExpertStats:
    return load_expert_stats(_run_at(path, digest))


def sample_stats_of_key(key: RunKey) -> SampleStats:
    """What the group `dense` measured in the run of this key; not kept, for it may be large.

    Raises:
        StatsError: the run lacks it.
    """
    return load_sample_stats(_run_at(*key))


def parts_of_key(key: RunKey) -> list[ExpertStats]:
    """Statistics of growing parts of the tokens of the run of this key.

    Raises:
        StatsError: the run has no token shards.
    """
    return _part_stats(*key)


@st.cache_resource(max_entries=8)
def _part_stats(path: str, digest: str) -> list[ExpertStats]:
    run = _run_at(path, digest)
    return [stats_at(run, parts) for parts in TOKEN_PARTS]


def calibrated_models() -> dict[str, dict[str, Run]]:
    """By name, every model that was calibrated on two texts and more, with its run of each.

    Models of one name are told apart by their identity.
    """
    runs, _ = all_runs()
    by_identity: dict[str, list[Run]] = {}
    for run in runs:
        if run.manifest.kind == "routed":
            by_identity.setdefault(run.manifest.model.identity, []).append(run)
    names = Counter(each[0].manifest.model.name for each in by_identity.values())
    found = {}
    for identity, of_model in by_identity.items():
        name = of_model[0].manifest.model.name
        label = name if names[name] == 1 else f"{name} {identity[:8]}"
        found[label] = newest_by_corpus(of_model)
    return {label: texts for label, texts in found.items() if len(texts) > 1}


def mixture(runs: Sequence[Run]) -> Mixture:
    """The sums of several runs, ready to be mixed.

    Raises:
        StatsError: runs that cannot be added.
    """
    return _mixture(tuple(run_key(run) for run in runs))


@st.cache_resource(max_entries=8)
def _mixture(runs: tuple[tuple[str, str], ...]) -> Mixture:
    return Mixture([_run_at(path, digest) for path, digest in runs])


def blended_stats(runs: Sequence[Run], weights: Sequence[float]) -> ExpertStats:
    """Statistics of a blend; runs of weight 0 are left out.

    Raises:
        StatsError: runs that cannot be added.
    """
    used = [(run, weight) for run, weight in zip(runs, weights, strict=True) if weight > 0]
    if len(used) == 1:
        return expert_stats(used[0][0])
    return mixture([run for run, _ in used]).mixed([weight for _, weight in used])


def weight_stats(run: Run) -> WeightStats:
    """Statistics of a model's weights."""
    return _weight_stats(*run_key(run))


@st.cache_resource(max_entries=16)
def _weight_stats(path: str, digest: str) -> WeightStats:
    return load_weight_stats(_run_at(path, digest))


def _run_at(path: str, digest: str) -> Run:
    run = read_run(Path(path))
    if run_key(run)[1] != digest:
        raise StatsError(f"The run {run.manifest.run_id} changed on disk; reload the page.")
    return run


def size_report_of(model: MoEModel, percent: int) -> SizeReport:
    """Sizes under a uniform plan; which experts stay does not change them."""
    return _size_report(model.identity, percent, model)


@st.cache_resource(max_entries=64)
def _size_report(identity: str, percent: int, _model: MoEModel) -> SizeReport:
    del identity  # part of the key only
    counts = uniform(_model.layers, f"{percent}%").counts
    kept = {layer: tuple(range(keep)) for layer, keep in counts.items()}
    return size_report(_model, PruningPlan(model_ref(_model), kept))
